"""Exact faults are diagnosed with a right code and a guilty layer; no healthy twin raises an alarm.

How well the statistical rules do is measured by `make bench-detection`: no test can promise it for every case.
"""

from pathlib import Path

import pytest

from corpus.examination import examine
from corpus.registry import sick_cases

# What can be told from one step or two, without any statistics.
INVARIANTS = {"NUM001", "NUM002", "NUM003", "GRD003", "GRD004", "GRD007", "UPD003", "UPD004"}
EXACT = sorted(
    name
    for name, training in sick_cases("development").items()
    if training.code in INVARIANTS and name != "frozen_by_mistake"  # whether freezing was meant is a guess
)


def test_every_invariant_has_a_sick_training() -> None:
    assert {sick_cases("development")[name].code for name in EXACT} == INVARIANTS


@pytest.mark.parametrize("name", EXACT)
def test_the_disease_is_found(name: str, tmp_path: Path) -> None:
    examination = examine(sick_cases("development")[name], tmp_path / "run", every=1)
    found = [(finding.code, finding.severity, finding.layers[:4]) for finding in examination.diagnosis.findings]
    assert examination.detection is not None, f"found only {found}"
    assert examination.names_a_guilty_layer in (True, None), f"named {examination.detection.layers}"
    assert not examination.false_alarms


def _expect_a_healthy_twin(name: str, folder: Path, seed: int) -> None:
    examination = examine(sick_cases("development")[name], folder, seed, fault_on=False, every=1)
    assert examination.was_watched
    assert [(alarm.code, alarm.summary) for alarm in examination.alarms] == []


@pytest.mark.parametrize("name", EXACT[::2])
def test_the_twin_of_an_exact_fault_is_healthy(name: str, tmp_path: Path) -> None:
    _expect_a_healthy_twin(name, tmp_path / "run", seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(sick_cases("development")))
def test_every_twin_is_healthy(name: str, tmp_path: Path) -> None:
    _expect_a_healthy_twin(name, tmp_path / "run", seed=1)
