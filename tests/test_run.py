"""A run opened for reading, written by the real writer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.detect.building import Training

from undertow.detect.engine import Engine
from undertow.detect.journal import changes_in, to_record
from undertow.errors import UnknownNameError, UnreadableRunError
from undertow.run import Run, open_run
from undertow.schema.facts import RunFacts, RunStatus
from undertow.schema.frames import Frame
from undertow.schema.severity import Health
from undertow.store.writer import RunWriter


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("", encoding="utf-8")
    monkeypatch.delenv("UNDERTOW_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


def start(folder: Path, training: Training) -> RunWriter:
    writer = RunWriter(folder, RunFacts(undertow="0", name="label"))
    writer.set_layers(training.layers, training.graph)
    for frame in training.frames:
        assert writer.append(frame)
    return writer


def finish(writer: RunWriter) -> None:
    writer.facts.status = RunStatus.FINISHED
    writer.write_facts()
    writer.close()


@pytest.fixture
def training() -> Training:
    return Training().run(5).run(3, gradient_optimizer={"third": -1.0}).run(4, gradient_norm={"head": 7.0})


@pytest.fixture
def run(tmp_path: Path, training: Training) -> Run:
    finish(start(tmp_path / "runs" / "one", training))
    return open_run(tmp_path / "runs" / "one")


def test_numbers_line_up(run: Run, training: Training) -> None:
    assert run.steps.tolist() == list(range(12))
    assert run.layers == training.layers
    assert "gradient_norm" in run.quantities
    assert run.scalars("loss").tolist() == [1.0] * 12
    series = run.series("gradient_norm", "head.weight")
    np.testing.assert_array_equal(series, np.float32([0.1] * 8 + [7.0] * 4))
    np.testing.assert_array_equal(series, run.series("gradient_norm", run.layers["head.weight"]))
    matrix = run.matrix("gradient_norm")
    assert matrix.shape == (12, len(run.layers))
    np.testing.assert_array_equal(matrix[:, run.layers["head.weight"].id], series)


def test_unknown_names_list_near_ones(run: Run) -> None:
    with pytest.raises(UnknownNameError, match="gradient_norm"):
        run.series("gradient_nrm", "head.weight")
    with pytest.raises(UnknownNameError, match=r"head\.weight"):
        run.series("gradient_norm", "head.wait")
    with pytest.raises(UnknownNameError, match="loss"):
        run.scalars("los")
    with pytest.raises(UnknownNameError, match="gradient_norm"):
        run.matrix("gradient_nrm")


def test_what_it_is(run: Run) -> None:
    assert (run.name, run.status, run.folder.name) == ("label", "finished", "one")
    assert repr(run).startswith("<Run 'label': finished, steps 0–11, 12 recorded, 8 layers, ")
    assert run.events == []
    assert run.problems == []


def test_tables(run: Run) -> None:
    frame = run.to_pandas()
    assert {"step", "layer", "gradient_norm"} <= set(frame.columns)
    assert run.to_arrow().num_rows == len(frame)


def test_offline_says_what_online_said(tmp_path: Path) -> None:
    training = Training().run(12, gradient_zero_fraction={"second": 1.0}).run(2, scalars={"loss": math.nan})
    finish(start(tmp_path / "one", training))
    offline = {f.code: f for f in open_run(tmp_path / "one").findings}
    for online in training.findings():
        again = offline[online.code]
        for name in ("layers", "first_step", "detected_step", "last_step", "severity", "ongoing", "summary"):
            assert getattr(again, name) == getattr(online, name)


def test_a_run_that_is_still_written(tmp_path: Path) -> None:
    training = Training().run(3)
    writer = start(tmp_path / "live", training)
    run = open_run(tmp_path / "live")
    assert run.status == "running"
    assert run.diagnose().health is Health.HEALTHY
    assert run.diagnose() is run.diagnose()
    assert not run.refresh()
    training.run(1, scalars={"loss": math.inf})
    writer.append(training.frames[-1])
    assert run.diagnose().health is Health.HEALTHY
    assert run.refresh()
    assert run.diagnose().health is Health.CRITICAL
    assert run.diagnose().steps.recorded == 4
    finish(writer)


def test_a_run_without_frames(tmp_path: Path) -> None:
    finish(start(tmp_path / "empty", Training()))
    run = open_run(tmp_path / "empty")
    assert run.steps.tolist() == []
    assert run.diagnose().health is None
    assert run.diagnose().coverage.reasons
    assert "no steps" in repr(run)


def test_names_latest_and_what_is_not_there(run: Run, tmp_path: Path) -> None:
    assert open_run("one").folder == Path("runs/one")
    assert open_run("latest").folder == Path("runs/one")
    assert open_run("runs/latest").folder == Path("runs/one")
    with pytest.raises(UnreadableRunError, match="one"):
        open_run("onn")
    with pytest.raises(UnreadableRunError):
        open_run(tmp_path / "nowhere")
    with pytest.raises(UnreadableRunError):
        open_run(tmp_path / "pyproject.toml")


def test_the_journal_remembers_what_thinned_frames_cannot_show(tmp_path: Path) -> None:
    training = Training()
    records = []
    for _ in range(40):
        training.run(1, gradient_optimizer={"third": -1.0})
    live = Engine()
    live.set_layers(training.layers, training.graph)
    for frame in training.frames:
        records += [to_record(change) for change in live.observe(frame)]
    (record,) = records
    thin = Training()
    thin.frames = training.frames[::16]  # three frames: too few for the rule
    writer = start(tmp_path / "thin", thin)
    writer.event("finding", 4, **record)
    writer.append(Frame(99, 40, 40.0, {"loss": 1.0}, {}))
    finish(writer)
    (finding,) = open_run(tmp_path / "thin").findings
    assert (finding.code, finding.first_step, finding.detected_step) == ("UPD003", 0, 4)


def test_records_survive_and_damaged_ones_are_passed_over(training: Training) -> None:
    engine = Engine()
    engine.set_layers(training.layers, training.graph)
    assert list(changes_in([{"kind": "finding"}, {"kind": "finding", "finding": 3}, {"kind": "note"}])) == []
    sick = Training()
    changes = []
    for _ in range(2):
        sick.run(1, gradient_nonfinite_count={"first": 1.0})
        changes += engine.observe(sick.frames[-1])
    back = list(changes_in([{"kind": "finding", **to_record(change)} for change in changes]))
    assert back == changes
