"""Cut off anywhere, bits flipped anywhere: a clear answer, never another exception, never a wrong shape."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from tests.crash import frame_maker

from undertow.errors import UnreadableRunError
from undertow.schema import Frame
from undertow.store.reader import RunReader

FRAMES = 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damage") / "run"
    writer = frame_maker.new_writer(folder)
    for i in range(FRAMES):
        writer.append(frame_maker.make_frame(i))
    writer.event("note", 3, text="hello")
    writer.event("note", 4, text="again")
    writer.close()
    return folder


def read_everything(folder: Path) -> RunReader | None:
    """None when the run says clearly that it cannot be read."""
    try:
        reader = RunReader(folder)
        read_all_of(reader)
    except UnreadableRunError as error:
        return None if str(folder) in str(error) else pytest.fail(f"the message names no file: {error}")
    return reader


def read_all_of(reader: RunReader) -> None:
    steps = len(reader.steps)
    layers = len(reader.layers)
    for quantity in (*reader.quantities, "gradient_norm"):
        if "sketch" not in quantity:
            assert reader.matrix(quantity).shape == (steps, layers)
    assert reader.window("gradient_norm", 0, 100, 4).mean.shape[1] == layers
    reader.sketches("gradient_sketch")
    for name in reader.scalar_names:
        assert reader.scalars(name).shape == (steps,)
    assert len(list(reader.frames())) == reader.frame_count
    reader.events()
    assert isinstance(reader.status, str)
    assert all(isinstance(problem, str) for problem in reader.problems)


def put(path: Path, data: bytes) -> None:
    """As a new file: overwriting one makes some file systems wait for the disk."""
    path.unlink()
    path.write_bytes(data)


def files_of(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def test_the_undamaged_run_is_whole(run: Path) -> None:
    reader = read_everything(run)
    assert reader is not None
    assert reader.problems == []
    frames = list(reader.frames())
    assert len(frames) == reader.frame_count > 0
    assert all(frame_maker.is_right(frame) for frame in frames)


def test_a_segment_cut_off_at_every_byte(tmp_path: Path) -> None:
    """The rows before the cut are there, those after it are not."""
    writer = frame_maker.new_writer(tmp_path / "run")
    for i in range(4):
        writer.append(Frame(i, i, 0.0, {}, {"update": frame_maker.make_block("update", i)}))
    writer.close()
    path = tmp_path / "run" / "segments" / "update-00000.arrows"
    previous = 4
    for size in range(path.stat().st_size, -1, -1):
        os.truncate(path, size)
        values = RunReader(tmp_path / "run").series("update_norm", 0)
        rows = int((~np.isnan(values)).sum())
        assert rows in (previous, previous - 1)
        assert values[:rows].tolist() == [float(i) for i in range(rows)]
        previous = rows
    assert previous == 0


@pytest.mark.parametrize("name", ["segments/scalars-00000.arrows", "run.json", "layers.json", "events.jsonl"])
def test_small_files_cut_off_at_every_byte(run: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    data = (folder / name).read_bytes()
    for size in range(0, len(data), 1 if len(data) < 1000 else 7):
        put(folder / name, data[:size])
        read_everything(folder)


def test_every_file_cut_off_at_random_places(run: Path, tmp_path: Path) -> None:
    chance = random.Random(3)
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    for name in files_of(run):
        data = (run / name).read_bytes()
        for _ in range(15):
            put(folder / name, data[: chance.randrange(len(data))])
            read_everything(folder)
        put(folder / name, data)


def test_flipped_bits(run: Path, tmp_path: Path) -> None:
    """Mostly in the headers, where the lengths are."""
    chance = random.Random(4)
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    for name in files_of(run):
        data = (run / name).read_bytes()
        for trial in range(36):
            damaged = bytearray(data)
            for _ in range(chance.choice([1, 1, 3, 20])):
                place = chance.randrange(len(data) if trial % 3 == 0 else min(len(data), 6000))
                damaged[place] ^= 1 << chance.randrange(8)
            put(folder / name, damaged)
            read_everything(folder)
        put(folder / name, data)


def test_rubbish_in_place_of_every_file(run: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    contents = [
        b"",
        b"\x00" * 5000,
        b"\xff" * 5000,
        chance.randbytes(5000),
        b"[" * 100_000,
        b"null",
        b"{}",
        b'{"format": "one"}',
        b"\xff\xff\xff\xff\xf8\xff\xff\x7f" + bytes(100),  # a header of two gigabytes
        b"\xff\xff\xff\xff\x00\x00\x00\x80" + bytes(100),  # a header of less than nothing
    ]
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    for name in files_of(run):
        for content in contents:
            put(folder / name, content)
            read_everything(folder)
        put(folder / name, (run / name).read_bytes())


def test_one_flipped_header_costs_one_row(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    path = folder / "segments" / "gradient-00000.arrows"
    data = bytearray(path.read_bytes())
    second = data.index(b"\xff\xff\xff\xff", data.index(b"\xff\xff\xff\xff", 8) + 8)
    data[second + 40] ^= 0x10
    path.write_bytes(data)
    reader = RunReader(folder)
    values = reader.series("gradient_norm", 0)
    assert np.isnan(values).tolist() == [i == 1 for i in range(FRAMES)]
    assert reader.problems == ["segments/gradient-00000.arrows: 1 damaged rows are left out"]


def test_refresh_keeps_what_it_had_when_a_document_breaks(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    reader = RunReader(folder)
    time.sleep(0.01)
    (folder / "run.json").write_bytes(b"{")
    assert reader.refresh()
    assert len(reader.steps) == FRAMES
    assert "run.json is damaged" in reader.problems[0]
