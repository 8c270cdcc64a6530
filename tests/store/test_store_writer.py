"""The life of a run folder: made, refused, resumed, thinned, and never raising into the training."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
from tests.store.small_runs import assert_same_frame, block, frame, layer_graph, layer_table, new_writer

from undertow.errors import UnwritableRunError
from undertow.schema import Frame, Layer, LayerTable, RunFacts, RunStatus
from undertow.store.layout import SCALARS
from undertow.store.reader import RunReader
from undertow.store.tracks import SCALAR_ROWS
from undertow.store.writer import RunWriter
from undertow.store.zoom_writer import summarize


def test_makes_the_folder_with_its_parents(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "a" / "b" / "run")
    writer.facts.status = RunStatus.FINISHED
    writer.facts.settings = {"every": math.nan, "path": Path("x"), "budget": 0.01}
    writer.close()
    reader = RunReader(tmp_path / "a" / "b" / "run")
    assert reader.status == "finished"
    assert reader.facts.name == "test"
    assert reader.facts.settings == {"every": None, "path": "x", "budget": 0.01}
    assert reader.facts.process == os.getpid()
    assert len(reader.steps) == 0
    assert list(reader.frames()) == []


def test_refuses_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnwritableRunError, match=str(tmp_path / "file")):
        new_writer(tmp_path / "file" / "run")


def test_refuses_a_folder_that_holds_a_run(tmp_path: Path) -> None:
    new_writer(tmp_path / "run").close()
    with pytest.raises(UnwritableRunError, match=r"already holds a run.*resume"):
        new_writer(tmp_path / "run")


def test_refuses_to_resume_what_another_process_writes(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run")
    writer.facts.process = os.getppid()
    writer.close()
    with pytest.raises(UnwritableRunError, match=f"process {os.getppid()}"):
        new_writer(tmp_path / "run", resume=True)


def test_refuses_to_resume_a_damaged_run(tmp_path: Path) -> None:
    new_writer(tmp_path / "run").close()
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(UnwritableRunError, match="cannot be resumed"):
        new_writer(tmp_path / "run", resume=True)


def test_resume_continues_the_axis_and_marks_the_seam(tmp_path: Path) -> None:
    first = new_writer(tmp_path / "run", 3)
    created = first.facts.created
    for i in range(5):
        first.append(frame(i, 3))
    first.close()
    second = new_writer(tmp_path / "run", 3, resume=True)
    assert second.last_step == 4
    assert second.layers.paths == layer_table(3).paths
    for i in range(3):  # a new process counts its frames from 0 again, and repeats step 4
        assert second.append(frame(i, 3, step=4 + i))
    second.close()
    reader = RunReader(tmp_path / "run")
    assert [one.sequence for one in reader.frames()] == list(range(8))
    assert reader.steps.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert reader.facts.seams == [4]
    assert reader.facts.created == created
    again = frame(0, 3, step=4).blocks["gradient"].quantity("gradient_norm")
    assert reader.matrix("gradient_norm")[4].tolist() == again.tolist()  # the later frame wins


def test_resume_of_nothing_is_a_new_run(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run", resume=True)
    writer.append(frame(0, 3))
    writer.close()
    assert RunReader(tmp_path / "run").facts.seams == []


def test_another_model_cannot_take_over_a_run(tmp_path: Path) -> None:
    new_writer(tmp_path / "run", 3).close()
    writer = new_writer(tmp_path / "run", 3, resume=True)
    with pytest.raises(UnwritableRunError, match="not those of this model"):
        writer.set_layers(LayerTable.of([Layer("other")]), layer_graph(1))
    writer.close()


def test_a_broken_frame_is_dropped_and_not_raised(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run")
    unknown = block("gradient", [0])
    object.__setattr__(unknown, "stream", "no such stream")
    assert not writer.append(Frame(0, 0, 0.0, {}, {"gradient": unknown}))
    assert writer.frames_dropped == 1
    assert "no such stream" in writer.last_error
    odd = {"loss": "not a number", "big": 10**400, "bad \ud800 name": 1.0, "fine": np.float32(2)}
    assert writer.append(Frame(1, 1, 0.0, odd, {}))  # type: ignore[arg-type]
    writer.event("odd", 1, value={1, 2}, nan=math.nan)
    writer.close()
    reader = RunReader(tmp_path / "run")
    found = [dict(one.scalars) for one in reader.frames()]
    assert found == [{"big": math.inf, "bad ? name": 1.0, "fine": 2.0}]
    assert reader.events()[0]["nan"] is None


def test_rows_of_a_frame_that_never_counted_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full when the last row of the frame, its scalars, was to be written."""
    writer = new_writer(tmp_path / "run", 3)
    assert writer.append(frame(0, 3))
    with monkeypatch.context() as patch:
        patch.setattr(writer._scalars, "append", lambda *_: (_ for _ in ()).throw(OSError("full")))
        assert not writer.append(frame(1, 3))
    assert writer.append(frame(2, 3))
    writer.close()
    second = new_writer(tmp_path / "run", 3, resume=True)
    assert second.last_step == 2
    second.close()
    reader = RunReader(tmp_path / "run")
    assert reader.steps.tolist() == [0, 2]
    for one, expected in zip(reader.frames(), (frame(0, 3), frame(2, 3)), strict=True):
        assert_same_frame(one, expected)
    norms = [frame(i, 3).blocks["gradient"].quantity("gradient_norm").tolist() for i in (0, 2)]
    assert reader.matrix("gradient_norm").tolist() == norms
    window = reader.window("gradient_norm", 0, 5, 10)
    assert window.minimum.tolist() == window.maximum.tolist() == norms


def test_scalar_segments_are_packed(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run")
    count = SCALAR_ROWS + 10
    for i in range(count):
        writer.append(Frame(i, i, 0.0, {"loss": float(i), "lr": 0.1}, {}))
    assert sum(1 for _ in (tmp_path / "run" / "segments").iterdir()) == 2
    full = tmp_path / "run" / "segments" / f"{SCALARS}-00000.arrows"
    assert full.stat().st_size < 41 * SCALAR_ROWS
    assert RunReader(tmp_path / "run").scalars("loss").tolist() == [float(i) for i in range(count)]
    writer.close()


def test_disk_budget_thins_old_frames_and_keeps_the_ends(tmp_path: Path) -> None:
    budget = 2_000_000
    writer = new_writer(tmp_path / "run", 40, disk_budget=budget)
    frames = 1500
    for i in range(frames):
        assert writer.append(frame(i, 40)), writer.last_error
        assert writer.bytes_on_disk < 1.1 * budget
    on_disk = sum(path.stat().st_size for path in (tmp_path / "run").rglob("*.arrows"))
    assert on_disk == writer.bytes_on_disk
    assert writer.bytes_written > 2 * budget
    writer.close()
    reader = RunReader(tmp_path / "run")
    assert reader.problems == []
    assert len(reader.steps) == frames
    assert not np.isnan(reader.scalars("loss")).any()
    kept = [one for one in reader.frames() if one.blocks]
    assert 50 < len(kept) < frames // 2
    assert kept[0].sequence == 0
    assert kept[-1].sequence == frames - 1
    for one in kept:
        assert_same_frame(one, frame(one.sequence, 40))
    sequence = np.array([one.sequence for one in kept])
    assert (sequence > frames / 2).sum() > (sequence <= frames / 2).sum()  # older frames are rarer


def test_disk_budget_takes_over_what_a_resumed_run_has(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run", 40)
    for i in range(400):
        writer.append(frame(i, 40))
    writer.close()
    before = writer.bytes_on_disk
    second = new_writer(tmp_path / "run", 40, resume=True, disk_budget=before // 2)
    second.append(frame(400, 40))
    assert second.bytes_on_disk < 0.6 * before
    second.close()
    assert RunReader(tmp_path / "run").frame_count == 401


def test_the_folder_may_vanish(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", RunFacts())
    for path in sorted((tmp_path / "run").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (tmp_path / "run").rmdir()
    assert not writer.append(frame(0, 0, streams=()))
    writer.event("lost")
    writer.write_facts()
    writer.set_layers(layer_table(2), layer_graph(2))
    writer.close()
    assert writer.frames_dropped == 1


def test_status_of_a_run_whose_process_is_gone(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run")
    assert RunReader(tmp_path / "run").status == "running"
    writer.facts.process = 2**22 + 1
    writer.close()
    assert not writer.append(frame(0, 3))  # closed is closed
    assert RunReader(tmp_path / "run").status == "killed"
    writer.facts.host = "elsewhere"
    writer.write_facts()
    assert RunReader(tmp_path / "run").status == "running"  # on another machine only silence tells
    for path in (tmp_path / "run").rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert RunReader(tmp_path / "run").status == "killed"


def test_a_process_that_came_later_is_not_the_writer(tmp_path: Path) -> None:
    """Numbers of processes come back, in containers soon."""
    new_writer(tmp_path / "run").close()
    assert RunReader(tmp_path / "run").status == "running"
    for path in (tmp_path / "run").rglob("*"):
        os.utime(path, (1e9, 1e9))  # last written long before this process began
    assert RunReader(tmp_path / "run").status == "killed"


def test_only_refresh_makes_the_time_axis_longer(tmp_path: Path) -> None:
    """Files replaced under a reader's eyes are found again, and what it returns still fits its steps."""
    writer = new_writer(tmp_path / "run", 3)
    for i in range(5):
        writer.append(frame(i, 3))
    reader = RunReader(tmp_path / "run")
    writer.append(Frame(5, 5, 0.0, {"new": 1.0}, frame(5, 3).blocks))  # packs the scalars that the reader knows
    assert reader.scalars("loss").tolist() == [1.0 / (1 + i) for i in range(5)]
    assert len(reader.steps) == len(reader.matrix("gradient_norm")) == 5
    assert len(list(reader.frames())) == 5
    assert reader.refresh()
    assert len(reader.steps) == len(reader.matrix("gradient_norm")) == len(list(reader.frames())) == 6
    assert not reader.refresh()
    writer.close()


@pytest.mark.parametrize("odd", [(), (math.nan,), (math.inf,), (math.nan, math.inf, -math.inf)])
def test_a_row_of_the_zoom_sums_up_what_is_finite(odd: tuple[float, ...]) -> None:
    values = np.arange(1, 25, dtype=np.float32).reshape(2, 4, 3)
    for place, value in enumerate(odd):
        values[1, place, 2] = value
    keys = {name: np.arange(8) for name in ("sequence", "step", "time")}
    rows = summarize(keys, values)  # type: ignore[arg-type]
    finite = np.where(np.isfinite(values), values, np.nan)
    assert rows.keys == [(0, 0, 0, 3, 3, 4), (4, 4, 4, 7, 7, 4)]
    assert rows.minimum.tolist() == np.nanmin(finite, axis=1).tolist()
    assert rows.maximum.tolist() == np.nanmax(finite, axis=1).tolist()
    assert rows.total.tolist() == np.nansum(finite, axis=1).tolist()
    assert rows.nan.tolist() == np.isnan(values).sum(axis=1).tolist()
    assert rows.infinite.tolist() == np.isinf(values).sum(axis=1).tolist()
