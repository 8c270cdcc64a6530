"""Whole diagnoses of non-finite values, wherever the first one was seen, to the letter."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.explain.test_diagnosis import LAYERS, event, finding
from tests.golden import assert_as_before

from undertow.explain.diagnosis import diagnose
from undertow.explain.divergence import ValueHistory
from undertow.schema import Diagnosis, RunFacts, StepRange

GOLDEN = Path(__file__).parent / "golden"
CODES = ("NUM001", "NUM002", "NUM003", "NUM004")
PLACES = [
    ("Log", "second", ""), ("Addmm", "third", "3 of 8 values of 'weight' are NaN"),
    ("Addmm", "second", "3 of 8 values of 'self' are zero or negative"), ("", None, ""),
]  # fmt: skip
ORIGINS = [
    {"where": where, "operation": operation, "layer": layer, "detail": detail}
    for where, (operation, layer, detail) in product(("forward", "backward", "weight"), PLACES)
]


def text_of(diagnosis: Diagnosis) -> str:
    lines = [diagnosis.story, f"culprit: {diagnosis.culprit}"]
    for one in diagnosis.findings:
        lines.append(
            f"  {one.code} of {', '.join(one.layers) or 'none'}, follows from {one.follows_from}: {one.summary}"
        )
        lines += [
            f"    {seen.quantity} of {seen.layer}: {seen.value}, {seen.expected}; {seen.how}" for seen in one.evidence
        ]
        lines.append(f"    {', '.join(remedy.id for remedy in one.remedies)}")
    return "\n".join(lines)


@pytest.mark.parametrize("diverged", [False, True])
@pytest.mark.parametrize("code", CODES)
def test_of_non_finite_values(code: str, diverged: bool) -> None:
    history = (
        ValueHistory(np.arange(6), np.array([2.0, 1, 1, 1, 1e5, np.nan]), np.full(6, np.nan)) if diverged else None
    )
    said = []
    for origin in ORIGINS:
        found = diagnose(
            [finding(code), finding("NUM003", layers=("second.weight", "third.weight"))], run="r", facts=RunFacts(),
            layers=LAYERS, steps=StepRange(0, 9, 10), events=[event(**origin)], history=history,
        )  # fmt: skip
        said.append(f"# {origin}\n{text_of(found)}\n")
    assert_as_before(GOLDEN / f"{code}{'_diverged' if diverged else ''}.txt", "\n".join(said))
