"""kill -9 at random moments: what was reported as written reads back, and nothing else goes wrong."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests import limited
from tests.crash import frame_maker

from undertow.store.reader import RunReader

TRIALS = 60


def start(folder: Path, budget: int = 0, pause: float = 0.0, at_once: int = 1) -> subprocess.Popen[bytes]:
    command = [sys.executable, frame_maker.__file__, str(folder), str(budget), str(pause), str(at_once)]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def write_and_kill(folder: Path, seconds: float, budget: int = 0, at_once: int = 1) -> list[int]:
    """The sequence numbers that the process had reported when it was killed."""
    process = start(folder, budget, at_once=at_once)
    assert process.stdout is not None
    reported = process.stdout.read(8)  # it is running
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    reported += process.stdout.read()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    return np.frombuffer(reported[: len(reported) // 8 * 8], "<i8").tolist()


def test_every_reported_frame_survives_a_kill(tmp_path: Path) -> None:
    chance = random.Random(20260)
    total = 0
    for trial in range(TRIALS):
        folder = tmp_path / f"run-{trial}"
        at_once = (1, 1, 1, 7, 40)[trial % 5]
        reported = write_and_kill(folder, chance.uniform(0, 0.06), at_once=at_once)
        reader = RunReader(folder)
        frames = list(reader.frames())
        found = [frame.sequence for frame in frames]
        assert found[: len(reported)] == reported, f"trial {trial}"
        assert len(found) - len(reported) <= at_once  # frames may be whole and not yet reported
        assert all(frame_maker.is_right(frame) for frame in frames), f"trial {trial}"
        assert reader.problems == []
        assert reader.status == "killed"
        total += len(reported)
    assert total > 10 * TRIALS


def test_killed_and_resumed_again_and_again(tmp_path: Path) -> None:
    chance = random.Random(7)
    reported: list[int] = []
    for _ in range(6):
        reported += write_and_kill(tmp_path / "run", chance.uniform(0, 0.03))
        reader = RunReader(tmp_path / "run")
        frames = list(reader.frames())
        assert {frame.sequence for frame in frames} >= set(reported)
        assert all(frame_maker.is_right(frame) for frame in frames)
        assert reader.problems == []
    assert len(reader.facts.seams) == 5
    assert set(reader.facts.seams) <= set(reader.steps.tolist())


def test_a_kill_while_thinning_loses_no_more_than_thinning_does(tmp_path: Path) -> None:
    chance = random.Random(11)
    thinned = 0
    for trial in range(12):
        folder = tmp_path / f"run-{trial}"
        reported = write_and_kill(folder, chance.uniform(0.1, 0.4), 700_000)
        reader = RunReader(folder)
        frames = list(reader.frames())
        assert [frame.sequence for frame in frames][: len(reported)] == reported
        assert reader.problems == []
        assert "gradient" in frames[0].blocks
        assert "gradient" in frames[len(reported) - 1].blocks
        for frame in frames:
            assert frame.scalars == frame_maker.make_frame(frame.sequence).scalars
            for name, block in frame.blocks.items():
                assert np.array_equal(block.values, frame_maker.make_block(name, frame.sequence).values)
        thinned += sum("gradient" not in frame.blocks for frame in frames)
    assert thinned > 0


@pytest.mark.parametrize("budget", [0, 700_000])
def test_a_reader_beside_a_live_writer(tmp_path: Path, budget: int) -> None:
    """It follows frame by frame and never sees one that is wrong, while segments are packed and thinned."""
    folder = tmp_path / "run"
    process = start(folder, budget, pause=0.0002)
    assert process.stdout is not None
    try:
        assert len(process.stdout.read(8)) == 8
        os.set_blocking(process.stdout.fileno(), False)
        reader = RunReader(folder)
        assert reader.status == "running"
        seen = -1
        for _ in range(40):
            process.stdout.read()  # keep the pipe from filling up
            reader.refresh()
            for frame in reader.frames(after_sequence=seen):
                assert frame.sequence == seen + 1
                seen = frame.sequence
                if not budget:
                    assert frame_maker.is_right(frame)
            matrix = reader.matrix("gradient_norm")
            window = reader.window("gradient_norm", 0, 2 * seen, 20)
            rows = np.flatnonzero(~np.isnan(matrix[:, 0]))
            assert matrix[rows, 0].tolist() == [np.float32(row) for row in rows]
            if not budget:
                assert len(rows) == len(reader.steps)
            assert window.minimum[0, 0] == 0.0
            assert reader.problems == []
        assert seen > 100
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_kills_of_every_way_of_recording() -> None:
    """A few of those of `make kills`: the store, the rules, real trainings, each with and without another process."""
    ended = limited.python("-m", "tests.crash", "60", address_space=64 * limited.GIGABYTE, patience=900)
    assert ended.code == 0, ended.out + ended.err
