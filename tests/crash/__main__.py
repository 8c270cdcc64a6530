"""SIGKILL at random moments, over and over: `python -m tests.crash KILLS [SEED]` (make kills N=1000).

A victim is forked, records, and is killed; of those with another process that writes, that one is killed first in
every second trial. Then the run must open, say that it was killed, hold every frame whose write had returned, and
nothing that is wrong. Exits with 1 otherwise.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch  # noqa: F401  (once, here, and not in every victim)
from tests.crash import victims
from tests.recording.test_life import ended

import undertow
from undertow.errors import UndertowError
from undertow.store.reader import RunReader


@dataclass
class Kind:
    """One way of recording, what to check, and what came of it."""

    name: str
    share: float  # of all kills
    victim: Callable[[Path, victims.Report, random.Random], None]
    wrong: Callable[[RunReader], list[int]]
    patience: float  # a kill comes within this many seconds of the first sign of life
    resumes: int = 0  # how often a killed run goes on
    kills: int = 0
    of_writers: int = 0  # kills of the other process
    early: int = 0  # kills before any write had returned
    frames: int = 0


KINDS = [
    Kind("the store", 0.30, victims.write, victims.wrong_frames, 0.06),
    Kind("the store, resumed", 0.12, victims.write, victims.wrong_frames, 0.04, resumes=3),
    Kind("the store, thinned", 0.15, victims.write_thinned, victims.wrong_thinned, 0.4),
    Kind("the recorder", 0.15, victims.record, victims.wrong_frames, 0.15),
    Kind("the recorder in a process", 0.16, victims.record_elsewhere, victims.wrong_frames, 1.5),
    Kind("a training", 0.06, victims.train, victims.wrong_steps, 0.5),
    Kind("a training, and a process", 0.06, victims.train_elsewhere, victims.wrong_steps, 3.0),
]


class Victim:
    def __init__(self, kind: Kind, folder: Path, seed: int) -> None:
        reading, writing = os.pipe()
        self.process = os.fork()
        if not self.process:
            os.close(reading)

            def report(numbers: list[int]) -> None:
                os.write(writing, struct.pack(f"<{len(numbers)}q", *numbers))

            try:
                kind.victim(folder, report, random.Random(seed))
            finally:
                os._exit(1)  # it goes on until it is killed
        os.close(writing)
        self._line = os.fdopen(reading, "rb", buffering=0)
        self.reported: list[int] = []
        self.writer = 0  # the process that writes for it

    def wait(self) -> None:
        self._take(self._line.read(8) or b"")

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        rest = bytearray()
        while part := self._line.read(1 << 16):
            rest += part
        self._line.close()
        _, status = os.waitpid(self.process, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "a victim ended by itself"
        self._take(bytes(rest))
        if self.writer:
            assert ended(self.writer), "the process that writes outlives its training"

    def _take(self, data: bytes) -> None:
        for (number,) in struct.iter_unpack("<q", data[: len(data) // 8 * 8]):
            if number < 0:
                self.writer = -number
            else:
                self.reported.append(number)


def trial(kind: Kind, folder: Path, chance: random.Random) -> None:
    reported: list[int] = []
    for _ in range(1 + kind.resumes):
        victim = Victim(kind, folder, chance.randrange(1 << 30))
        if chance.random() < 0.9:
            victim.wait()  # the rest are killed while they start
            if victim.writer and chance.random() < 0.7:
                victim.wait()  # and the other process as well
        if victim.writer and chance.random() < 0.5:
            time.sleep(chance.uniform(0, kind.patience))
            os.kill(victim.writer, signal.SIGKILL)
            kind.of_writers += 1
            kind.kills += 1
        time.sleep(chance.uniform(0, kind.patience))
        victim.kill()
        kind.kills += 1
        kind.early += not victim.reported
        reported += victim.reported
        check(kind, folder, reported)
    kind.frames += len(reported)


def check(kind: Kind, folder: Path, reported: list[int]) -> None:
    try:
        reader = RunReader(folder)
    except UndertowError:
        assert not reported, f"{folder} cannot be opened, but {len(reported)} frames were written"
        return
    found = (victims.steps_of if kind.wrong is victims.wrong_steps else victims.frames_of)(reader)
    assert len(set(found)) == len(found), "a frame is there twice"
    lost = sorted(set(reported) - set(found))
    assert not lost, f"{len(lost)} of {len(reported)} frames are lost: {lost[:5]}"
    assert not (wrong := kind.wrong(reader)), f"{len(wrong)} frames are wrong: {wrong[:5]}"
    assert reader.status == "killed", reader.status
    assert reader.problems == [], reader.problems
    undertow.open_run(folder).diagnose()


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    chance, failures = random.Random(seed), 0
    print(f"{kills} kills, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="undertow-kills-") as root:
        for kind in KINDS:
            number = 0
            while kind.kills < max(1, round(kind.share * kills)):
                folder = Path(root) / f"{kind.name} {number}"
                number += 1
                try:
                    trial(kind, folder, chance)
                except AssertionError as problem:
                    failures += 1
                    print(f"{kind.name}: {problem}", flush=True)
                shutil.rmtree(folder, ignore_errors=True)
            print(f"{kind.name:28}{kind.kills:6} kills ({kind.of_writers} of the process that writes, {kind.early} "
                  f"before the first frame), {kind.frames:,} frames reported", flush=True)  # fmt: skip
    total = sum(kind.kills for kind in KINDS)
    print(f"{total} kills, {sum(kind.frames for kind in KINDS):,} frames whose write had returned: "
          f"{failures} trials failed")  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
