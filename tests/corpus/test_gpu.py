"""The trainings for a GPU are enough to mean something, their truths are complete, and they run tiny without one."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from corpus.equivalence import EQUIVALENT
from corpus.gpu.sizes import ON_GPU
from corpus.registry import TIERS, cases, healthy_cases, sick_cases
from undertow.schema.codes import CODES


def test_there_are_enough_cases_and_all_are_new() -> None:
    assert len(sick_cases("gpu")) >= 16
    assert len(healthy_cases("gpu")) >= 12
    others = {name for tier in TIERS if tier != "gpu" for name in cases(tier)}
    assert not {*cases("gpu")} & others


def test_every_truth_is_complete() -> None:
    for case in sick_cases("gpu").values():
        assert set(case.codes) <= set(CODES), case.name
        assert all((case.code, code) in EQUIVALENT for code in case.codes[1:]), case.name
        assert case.twin in healthy_cases("gpu"), case.name
        assert case.onset < case.steps, case.name
        assert case.change, case.name


@pytest.mark.slow
@pytest.mark.skipif(ON_GPU, reason="on a GPU they are large, and sums come in any order")
@pytest.mark.parametrize("name", sorted(cases("gpu")))
def test_every_program_runs_and_repeats(name: str) -> None:
    torch.set_num_threads(1)
    case = cases("gpu")[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = case.run(steps=4), case.run(steps=4)
    assert first == second
    assert math.isfinite(first[case.bites])
