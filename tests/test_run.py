"""A run opened for reading, written by the real writer."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tests.detect.building import Training

from undertow.detect.engine import Change, Engine, FindingChange
from undertow.detect.engine.journal import changes_in, to_record
from undertow.errors import UnknownNameError, UnreadableRunError
from undertow.run import Run, open_run
from undertow.schema import Frame, Health, RunFacts, RunStatus
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
    assert {"NUM002"} < set(training.codes())
    for online in training.findings():
        again = offline[online.code]
        for name in ("layers", "first_step", "detected_step", "last_step", "severity", "ongoing", "summary"):
            assert getattr(again, name) == getattr(online, name)


@pytest.mark.parametrize(("streams", "found"), [(("gradient",), []), ((), ["NUM002"])])
def test_the_journal_is_believed_where_the_numbers_are_gone(
    tmp_path: Path, streams: tuple[str, ...], found: list[str]
) -> None:
    """A rule may have been wrong about a run that is whole; of a thinned one only its journal knows more."""
    told = Training().run(3).run(1, scalars={"loss": math.nan})
    writer = start(tmp_path / "one", Training().run(5).run(5, streams=streams))
    for finding in told.findings():
        writer.event("finding", finding.first_step, **to_record(FindingChange(Change.OPENED, finding)))
    finish(writer)
    assert told.codes() == ["NUM002"]
    assert [finding.code for finding in open_run(tmp_path / "one").findings] == found


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


def test_latest_is_of_the_directory_of_runs_only(
    run: Run, training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(start(tmp_path / "latest", training))  # somebody's own folder of that name
    finish(start(tmp_path / "other" / "two", training))
    assert open_run("latest").folder == Path("runs/one")
    assert open_run("./latest").folder == Path("latest")
    assert open_run(tmp_path / "latest").folder == tmp_path / "latest"
    monkeypatch.setenv("UNDERTOW_DIR", "other")
    assert open_run("latest").folder == Path("other/two")
    finish(start(tmp_path / "other" / "three", training))
    (tmp_path / "other" / "latest").symlink_to("two")
    assert open_run("latest").folder.resolve() == tmp_path / "other" / "two"
    monkeypatch.setenv("UNDERTOW_DIR", "elsewhere")
    with pytest.raises(UnreadableRunError, match="the folder elsewhere does not exist"):
        open_run("latest")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UnreadableRunError, match="the folder elsewhere holds no run"):
        open_run("latest")


def test_a_folder_of_runs_stands_for_one_when_there_is_no_doubt(run: Run, training: Training, tmp_path: Path) -> None:
    assert open_run("runs").folder == Path("runs/one")
    finish(start(tmp_path / "runs" / "two", training))
    with pytest.raises(UnreadableRunError, match="holds 2 runs"):
        open_run("runs")
    (tmp_path / "runs" / "latest").symlink_to("two")
    assert open_run("runs").folder.resolve() == tmp_path / "runs" / "two"
    (tmp_path / "one").mkdir()  # no run: it does not hide the one of that name
    assert open_run("one").folder == Path("runs/one")


def sick_run(folder: Path) -> Path:
    """With the journal that a live watch would have written: a finding that came, and went."""
    training = Training().run(5).run(2, gradient_nonfinite_count={"first": 3.0}).run(3)
    live = Engine()
    live.set_layers(training.layers, training.graph)
    writer = start(folder, training)
    for frame in training.frames:
        for change in live.observe(frame):
            writer.event("finding", frame.step, **to_record(change))
    writer.facts.steps_seen = 10
    finish(writer)
    return folder


def test_the_journal_speaks_for_damaged_files(tmp_path: Path) -> None:
    folder = sick_run(tmp_path / "sick")
    whole = open_run(folder).diagnose()
    (folder / "segments" / "gradient-00000.arrows").write_bytes(b"rubbish!" * 100)
    damaged = open_run(folder)
    assert damaged.diagnose().health is Health.CRITICAL
    (found,) = damaged.findings
    assert (found.code, found.first_step, found.ongoing) == ("NUM001", 5, False)
    assert found.layers == whole.findings[0].layers
    assert "gradient-00000.arrows is left out" in damaged.diagnose().coverage.reasons[0]
    (folder / "events.jsonl").unlink()
    assert open_run(folder).diagnose().health is None


@pytest.mark.parametrize("stream", ["scalars", "gradient", "weight"])
def test_missing_parts_are_named(tmp_path: Path, stream: str) -> None:
    folder = sick_run(tmp_path / "sick")
    assert open_run(folder).problems == []
    for file in (folder / "segments").glob(f"{stream}-*"):
        file.rename(file.with_name(f"{stream}-00001.arrows"))  # the first of two is gone
    assert open_run(folder).problems == [f"segments/{stream}-00000.arrows is missing"]
    if stream != "weight":  # these are always there when a training has stepped
        (folder / "segments" / f"{stream}-00001.arrows").unlink()
        assert open_run(folder).problems == [f"segments/{stream}-00000.arrows is missing"]
        assert f"segments/{stream}-00000.arrows is missing" in open_run(folder).diagnose().coverage.reasons


def test_values_that_ran_away_are_seen_in_the_numbers(tmp_path: Path) -> None:
    training = Training()
    for loss in (1.0, 2.0, 1e6, 1e30, math.inf, math.nan):
        training.run(1, scalars={"loss": loss})
    finish(start(tmp_path / "one", training))
    (found,) = open_run(tmp_path / "one").findings
    assert found.remedies[0].id == "lower-the-learning-rate"
    assert "from 1 at step 0 to 1e+30 at step 3" in found.evidence[0].how


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
