"""The validation tier is large enough to mean something, and its programs run. Nobody tunes a rule by it."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from undertow.faults.training import hospital, zoo
from undertow.faults.validation.case import Case, controls, healthy, patients
from undertow.schema.codes import CODES


def test_there_are_enough_cases_and_all_are_new() -> None:
    assert len(patients()) >= 40
    assert len(controls()) >= 30
    assert sum(bool(case.adversarial) for case in controls().values()) * 2 >= len(controls())
    assert not {*patients(), *healthy()} & {*hospital(), *zoo()}


def test_every_truth_is_complete() -> None:
    for case in patients().values():
        assert set(case.codes) <= set(CODES), case.name
        assert case.twin in healthy(), case.name
        assert case.onset < case.steps, case.name
        assert case.change, case.name


def test_a_truth_covers_everything_below_it() -> None:
    case = Case("name", "summary", 1, lambda steps, seed, fault: {}, ("GRD003",), frozenset({"encoder"}))
    assert case.accepts("encoder.first.weight")
    assert not case.accepts("encoders")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(patients()), *sorted(healthy())])
def test_every_program_runs_and_repeats(name: str) -> None:
    torch.set_num_threads(1)
    case = {**patients(), **healthy()}[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = case.run(steps=4), case.run(steps=4)
    assert first == second
    assert math.isfinite(first[case.bites])
