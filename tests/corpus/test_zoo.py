"""No healthy training raises an alarm."""

from pathlib import Path

import pytest

from corpus.examination import examine
from corpus.registry import controls


def _expect_silence(name: str, folder: Path, seed: int, every: int | str) -> None:
    examination = examine(controls("development")[name], folder, seed=seed, every=every)
    assert examination.was_watched
    assert [(alarm.code, alarm.summary) for alarm in examination.alarms] == []


@pytest.mark.parametrize("name", sorted(controls("development"))[::4])
def test_no_alarm_when_every_step_is_measured(name: str, tmp_path: Path) -> None:
    _expect_silence(name, tmp_path / "run", seed=0, every=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", sorted(controls("development")))
def test_no_alarm_with_the_default_sampling(name: str, seed: int, tmp_path: Path) -> None:
    _expect_silence(name, tmp_path / "run", seed=seed, every="auto")
