"""Every sick training is diagnosed with its code and a guilty layer; its healthy twin raises no alarm."""

from pathlib import Path

import pytest

from undertow.faults.examination import examine
from undertow.faults.training import hospital


@pytest.mark.parametrize("name", sorted(hospital()))
def test_the_disease_is_found(name: str, tmp_path: Path) -> None:
    examination = examine(hospital()[name], tmp_path / "run", every=1)
    found = [(finding.code, finding.severity, finding.layers[:4]) for finding in examination.diagnosis.findings]
    assert examination.detection is not None, f"found only {found}"
    assert examination.names_a_guilty_layer in (True, None), f"named {examination.detection.layers}"
    assert not examination.false_alarms


@pytest.mark.parametrize("name", sorted(hospital()))
def test_the_twin_is_healthy(name: str, tmp_path: Path) -> None:
    examination = examine(hospital()[name], tmp_path / "run", fault_on=False, every=1)
    assert examination.was_watched
    assert [(alarm.code, alarm.summary) for alarm in examination.alarms] == []
