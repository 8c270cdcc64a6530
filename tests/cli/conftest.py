"""Run folders on disk, written with the real writer from frames made by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.detect.building import Training

from undertow.schema import RunFacts, RunStatus
from undertow.store.writer import RunWriter


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("UNDERTOW_"):
            monkeypatch.delenv(name)
    (tmp_path / "pyproject.toml").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def write(
    folder: Path,
    training: Training,
    status: RunStatus = RunStatus.FINISHED,
    name: str = "example",
    verdict: tuple[str | None, str] = (None, ""),
) -> Path:
    facts = RunFacts(undertow="0.1.0", name=name, overhead_fraction=0.006, bytes_per_step=4100.0)
    facts.health, facts.cause = verdict
    facts.overhead_seconds_per_step = 0.0004
    writer = RunWriter(folder, facts)
    writer.set_layers(training.layers, training.graph)
    for frame in training.frames:
        assert writer.append(frame)
    facts.status = status
    writer.write_facts()
    writer.close()
    return folder


@pytest.fixture
def sick(tmp_path: Path) -> Path:
    training = Training().run(7)
    hit = {"first": 3.0, "second": 5.0}
    training.run(5, gradient_nonfinite_count=hit, weight_nonfinite_count={"first": 8.0}, gradient_state={"third": 2.0})
    return write(tmp_path / "runs" / "sick", training, verdict=("critical", "NUM001 non-finite-gradient"))


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return write(tmp_path / "runs" / "healthy", Training().run(20))


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    return write(tmp_path / "runs" / "empty", Training())


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    return write(tmp_path / "runs" / "unfinished", Training().run(3), RunStatus.RUNNING)
