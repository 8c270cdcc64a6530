"""What a run that is open for reading takes in memory: little for each step, and nothing twice."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

from tests.store.small_runs import frame, new_writer

from undertow.store.reader import RunReader

COLUMNS = 40


def opened(folder: Path) -> RunReader:
    """With everything indexed that a dashboard asks for."""
    reader = RunReader(folder)
    reader.scalars("loss")
    reader.matrix("gradient_norm", rows=slice(-8, None))
    reader.window("gradient_norm", 0, 1 << 20, COLUMNS)
    return reader


def memory_of(folder: Path) -> tuple[int, RunReader]:
    opened(folder)  # imports and caches of the process
    gc.collect()
    tracemalloc.start()
    try:
        reader = opened(folder)
        gc.collect()
        return tracemalloc.get_traced_memory()[0], reader
    finally:
        tracemalloc.stop()


def test_an_open_run_takes_as_much_as_it_says(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run")
    for sequence in range(3000):
        writer.append(frame(sequence, 3))
    writer.close()
    taken, reader = memory_of(tmp_path / "run")
    assert taken < 250 * 3000, "bytes: two streams of three keys each, by segment and by stream"
    assert 0.5 < reader.index_bytes / taken < 2


def test_questions_leave_nothing_behind(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run")
    for sequence in range(600):
        writer.append(frame(sequence, 3))
    reader = opened(tmp_path / "run")

    def ask(first: int) -> int:
        for start in range(first, first + 200):
            reader.window("gradient_norm", start, start + 100, COLUMNS + start % 7, [start % 3])
            reader.matrix("gradient_norm", [start % 3], slice(start, start + 50))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    ask(0)
    tracemalloc.start()
    try:
        ask(100)
        before = ask(200)
        assert ask(300) - before < 20_000, "a kept window of any of them would be more"
    finally:
        tracemalloc.stop()
        writer.close()


def test_a_run_that_grew_while_it_was_open_is_no_larger_than_one_opened_now(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run", disk_budget=200_000)
    writer.append(frame(0, 3))
    reader = opened(tmp_path / "run")
    for sequence in range(1, 1500):  # beyond the budget: files are thinned and packed meanwhile
        writer.append(frame(sequence, 3))
        if sequence % 50 == 0:
            reader.refresh()
            reader.matrix("gradient_norm", rows=slice(-8, None))
    writer.close()
    reader.refresh()
    reader.matrix("gradient_norm", rows=slice(-8, None))
    reader.window("gradient_norm", 0, 1 << 20, COLUMNS)
    assert reader.index_bytes <= opened(tmp_path / "run").index_bytes


def test_segments_of_the_same_columns_share_them(tmp_path: Path) -> None:
    writer = new_writer(tmp_path / "run", layers=200)
    for sequence in range(200):  # a sweep: every frame is of another layer, in a file of its own
        one = frame(sequence, 1)
        one.blocks["gradient"].layer_ids[:] = sequence
        writer.append(one)
    writer.close()
    reader = opened(tmp_path / "run")
    segments = reader._usable(reader._segments, "gradient", 1)
    assert len(segments) == 200
    assert len({id(segment.facts.quantities) for segment in segments}) == 1
    assert len({id(segment._columns) for segment in segments}) == 1
