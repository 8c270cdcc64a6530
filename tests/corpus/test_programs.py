"""The tiers of programs are large enough to mean something, and the programs run."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from corpus.fault_lines import fault_lines
from corpus.registry import cases, controls, healthy_cases, sick_cases
from undertow.demos.case import Case
from undertow.schema.codes import CODES

TIERS = ["practice", "validation", "fresh", "loops", "anew_everyday", "anew_loops"]
MARKED = ["anew_everyday", "anew_loops"]  # their lines at fault are marked


@pytest.mark.parametrize("tier", TIERS)
def test_there_are_enough_cases_and_all_are_new(tier: str) -> None:
    assert len(sick_cases(tier)) >= 40
    assert len(controls(tier)) >= 30
    assert sum(bool(case.adversarial) for case in controls(tier).values()) * 2 >= len(controls(tier))
    assert not {*cases(tier)} & {*cases("development")}


def test_no_case_is_in_two_tiers() -> None:
    names = [name for tier in TIERS for name in cases(tier)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("tier", TIERS)
def test_every_truth_is_complete(tier: str) -> None:
    for case in sick_cases(tier).values():
        assert set(case.codes) <= set(CODES), case.name
        assert case.twin in healthy_cases(tier), case.name
        assert case.onset < case.steps, case.name
        assert case.change, case.name


@pytest.mark.parametrize("tier", MARKED)
def test_most_cases_have_a_marked_line(tier: str) -> None:
    counts = [len(fault_lines(case)) for case in sick_cases(tier).values()]
    assert sum(map(bool, counts)) >= 0.9 * len(counts)
    assert max(counts) <= 3


def test_a_truth_covers_everything_below_it() -> None:
    case = Case("name", "summary", 1, lambda steps, seed, fault: {}, ("GRD003",), frozenset({"encoder"}))
    assert case.accepts("encoder.first.weight")
    assert not case.accepts("encoders")


@pytest.mark.slow
@pytest.mark.parametrize(("tier", "name"), [(tier, name) for tier in TIERS for name in cases(tier)])
def test_every_program_runs_and_repeats(tier: str, name: str) -> None:
    torch.set_num_threads(1)
    case = cases(tier)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = case.run(steps=4), case.run(steps=4)
    assert first == second
    assert math.isfinite(first[case.bites])
