"""Frames written together: the same bytes as one by one, and the same care for frames that do not fit."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.crash import frame_maker
from tests.crash.test_full_disk import files_no_larger_than
from tests.store.small_runs import assert_same_frame, block, frame, new_writer

from undertow.schema import Frame
from undertow.store.reader import RunReader
from undertow.store.tracks import SCALAR_ROWS
from undertow.store.writer import RunWriter


def varied(sequence: int) -> Frame:
    """Streams, layers, scalar names and values that are not numbers come and go."""
    layers = [0, 1, 2] if sequence % 7 else [1, 2]
    blocks = {"update": block("update", layers, sequence)}
    if sequence % 5 != 4:
        blocks["gradient"] = block("gradient", layers, sequence)
        blocks["gradient"].values[3] = math.nan
        blocks["gradient"].values[sequence % 3, 0] = (math.inf, -math.inf, math.nan)[sequence % 3]
    if sequence % 50 == 0:
        blocks["sketch"] = block("sketch", layers, sequence)
    scalars = {"loss": math.nan if sequence % 11 == 0 else sequence / 3, **({"late": 1.0} if sequence > 30 else {})}
    return Frame(sequence, sequence // 2, 0.1 * sequence, {} if sequence % 13 == 0 else scalars, blocks)


def files_in(folder: Path) -> list[tuple[str, bytes]]:
    """Names without their numbers: which of two layer sets ends its file first is of no importance."""
    return sorted((path.name.rpartition("-")[0], path.read_bytes()) for path in folder.rglob("*.arrows"))


def written(folder: Path, frames: Sequence[Frame], sizes: Sequence[int], **options: object) -> list[tuple[str, bytes]]:
    """Written in batches of these sizes, over and over."""
    writer = new_writer(folder, 3, **options)
    done = turn = 0
    while done < len(frames):
        size = sizes[turn % len(sizes)]
        assert writer.append_many(frames[done : done + size]) == len(frames[done : done + size]), writer.last_error
        done, turn = done + size, turn + 1
    writer.close()
    assert writer.frames_dropped == 0
    return files_in(folder)


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6), count=st.integers(1, 330))
def test_batches_leave_the_same_bytes_as_single_frames(sizes: list[int], count: int) -> None:
    frames = [varied(i) for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        assert written(Path(folder) / "a", frames, sizes) == written(Path(folder) / "b", frames, [1])


def test_zoom_levels_of_one_large_batch(tmp_path: Path) -> None:
    frames = [frame(i, 3) for i in range(16 * 16 * 16 + 40)]
    assert written(tmp_path / "a", frames, [len(frames)]) == written(tmp_path / "b", frames, [1])
    assert (tmp_path / "a" / "zoom" / "gradient-x4096-00000.arrows").exists()


def test_segments_end_within_a_batch(tmp_path: Path) -> None:
    """Scalars by their number of rows, others by their size."""
    frames = [frame(i, 3, streams=("gradient", "sketch")) for i in range(SCALAR_ROWS + 300)]
    options = {"disk_budget": 64 << 20}
    assert written(tmp_path / "a", frames, [500], **options) == written(tmp_path / "b", frames, [1], **options)
    for stream in ("gradient", "sketch", "scalars"):
        assert len(list((tmp_path / "a" / "segments").glob(f"{stream}-*.arrows"))) > 1


def test_more_layouts_than_files_may_be_open(tmp_path: Path) -> None:
    frames = [Frame(i, i, 0.0, {"loss": 1.0}, {"update": block("update", [i % 50, 50 + i % 3], i)}) for i in range(400)]
    writer = new_writer(tmp_path / "run", 60)
    assert writer.append_many(frames) == 400
    assert len(writer._tracks) <= 32
    writer.close()
    for found, expected in zip(RunReader(tmp_path / "run").frames(), frames, strict=True):
        assert_same_frame(found, expected)


def test_a_broken_frame_costs_no_other(tmp_path: Path) -> None:
    frames = [frame(i, 3) for i in range(20)]
    unknown = block("gradient", [0])
    object.__setattr__(unknown, "stream", "no such stream")
    frames[7] = Frame(7, 7, 0.0, {}, {"gradient": unknown})
    writer = new_writer(tmp_path / "run")
    assert writer.append_many(frames) == 19
    assert (writer.frames_dropped, "no such stream" in writer.last_error) == (1, True)
    assert writer.append_many([]) == 0
    writer.close()
    assert writer.append_many(frames[:3]) == 0
    assert writer.frames_dropped == 4
    assert [one.sequence for one in RunReader(tmp_path / "run").frames()] == [i for i in range(20) if i != 7]


def test_resume_marks_the_seam_at_the_first_frame_of_the_batch(tmp_path: Path) -> None:
    written(tmp_path / "run", [frame(i, 3) for i in range(5)], [5])
    writer = new_writer(tmp_path / "run", 3, resume=True)
    assert writer.append_many([frame(i, 3, step=5 + i) for i in range(4)]) == 4
    writer.close()
    reader = RunReader(tmp_path / "run")
    assert reader.facts.seams == [5]
    assert [one.sequence for one in reader.frames()] == list(range(9))


@pytest.mark.parametrize("size", [0, 5_000, 11_111, 40_000, 123_456])
def test_a_full_disk_in_the_middle_of_a_batch(tmp_path: Path, size: int) -> None:
    writer: RunWriter = frame_maker.new_writer(tmp_path / "run")
    frames = [frame_maker.make_frame(i) for i in range(150)]
    with files_no_larger_than(size):
        kept = writer.append_many(frames[:60]) + writer.append_many(frames[60:100])
        found = list(RunReader(tmp_path / "run").frames())
        assert len(found) == kept < 100
        assert all(frame_maker.is_right(one) for one in found)
    assert writer.frames_dropped == 100 - kept
    assert writer.last_error
    assert writer.append_many(frames[100:]) == 50
    writer.close()
    reader = RunReader(tmp_path / "run")
    found = list(reader.frames())
    assert [one.sequence for one in found[-50:]] == list(range(100, 150))
    assert len(found) == kept + 50
    assert all(frame_maker.is_right(one) for one in found)
    assert not reader.problems
