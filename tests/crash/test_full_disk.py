"""A full disk costs frames, which are counted, and nothing else; when space returns, writing goes on."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.ipc
import pytest
from tests.crash import frame_maker

from undertow.errors import UnwritableRunError
from undertow.run import open_run
from undertow.schema import Frame, RunFacts, RunStatus
from undertow.store.reader import RunReader
from undertow.store.writer import RunWriter


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Writes beyond it are cut short and then fail, as on a full disk. (Python ignores SIGXFSZ.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 5_000, 11_111, 40_000, 123_456])
def test_frames_are_dropped_and_counted_until_space_returns(tmp_path: Path, size: int) -> None:
    writer = frame_maker.new_writer(tmp_path / "run")
    with files_no_larger_than(size):
        kept = [i for i in range(100) if writer.append(frame_maker.make_frame(i))]
        writer.event("note", 1, text="x" * size)
        writer.write_facts()
        beside = RunReader(tmp_path / "run")
        assert [frame.sequence for frame in beside.frames()] == kept
        for path in (tmp_path / "run" / "segments").iterdir():  # no half row is left for others to stumble over
            pyarrow.ipc.open_stream(path.read_bytes()).read_all()
    assert len(kept) < 100
    assert writer.frames_dropped == 100 - len(kept)
    assert writer.last_error
    kept += [i for i in range(100, 150) if writer.append(frame_maker.make_frame(i))]
    assert len(kept) == 150 - writer.frames_dropped
    writer.event("recovered", 150)
    writer.close()
    reader = RunReader(tmp_path / "run")
    frames = list(reader.frames())
    assert [frame.sequence for frame in frames] == kept
    assert kept[-50:] == list(range(100, 150))
    assert all(frame_maker.is_right(frame) for frame in frames)
    assert reader.facts.frames_dropped == writer.frames_dropped
    assert reader.events()[-1]["kind"] == "recovered"
    assert not [problem for problem in reader.problems if "arrows" in problem]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)]
    made = subprocess.run(command, check=False, capture_output=True)
    if made.returncode:
        pytest.skip("mounting a file system needs privileges")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_real_full_disk(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(250_000))
    writer = frame_maker.new_writer(small_disk / "run")
    kept = [i for i in range(60) if writer.append(frame_maker.make_frame(i))]
    assert 0 < len(kept) < 60
    writer.write_facts()
    ballast.unlink()
    kept += [i for i in range(60, 70) if writer.append(frame_maker.make_frame(i))]
    assert kept[-10:] == list(range(60, 70))
    writer.close()
    reader = RunReader(small_disk / "run")
    frames = list(reader.frames())
    assert [frame.sequence for frame in frames] == kept
    assert all(frame_maker.is_right(frame) for frame in frames)
    assert reader.facts.frames_dropped == 70 - len(kept)


def test_a_disk_that_is_full_from_the_start(small_disk: Path) -> None:
    with pytest.raises(OSError, match="space"):
        (small_disk / "ballast").write_bytes(bytes(1_000_000))
    with pytest.raises(UnwritableRunError, match="run"):
        RunWriter(small_disk / "run", RunFacts())


def test_how_the_run_ended_and_what_it_lost_fits_into_the_file_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = frame_maker.new_writer(tmp_path / "run")

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    writer.facts.status, writer.facts.frames_dropped = RunStatus.FINISHED, 12
    writer.close()
    facts = RunReader(tmp_path / "run").facts
    assert (facts.status, facts.frames_dropped) == (RunStatus.FINISHED, 12)
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.endswith(".new")] == []


def test_lost_frames_leave_no_healthy_verdict(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", RunFacts())
    for i in range(40):
        writer.append(Frame(i, i, float(i), {"loss": 1 / (1 + i)}))
    writer.facts.status, writer.facts.frames_dropped = RunStatus.FINISHED, 1234
    writer.close()
    diagnosis = open_run(tmp_path / "run").diagnose()
    assert diagnosis.health is None
    assert "1,234 frames could not be written" in " ".join(diagnosis.coverage.reasons)
