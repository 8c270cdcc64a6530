"""Hours of watching: do memory, files, threads and disk stay where they are?

    python -m benchmarks.soak [--hours 1] [--folder DIR]        (make soak HOURS=1)

Three watched programs run beside each other: a long training whose findings open and close, models that come and go
under one watch, and one watch after another; and a dashboard whose pages are asked for all the time. Each is flat when
its growth after warm-up (the first third), by least squares over twelve stretches of time (their means; of files and
threads their minima), can be told to be at most what is allowed: the estimate and its 99 % noise together. A shorter
soak therefore rules out only faster leaks; the last column says which. What must grow with the data that a user keeps
is allowed besides, as measured: the index of each run that is open, which the dashboard holds and the recorder reads to
explain a finding. It is measured in this process after warm-up and at the end, and told in bytes per step. The disk
must stay within its budget and a tenth of it, for the files that are still being written. Exits with 1 when anything is
not flat.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

from benchmarks import ROOT
from benchmarks.soak.open_runs import Held, growth, growth_in_words, held_by
from benchmarks.soak.programs import PROGRAMS
from benchmarks.soak.samples import MEASURES, children_of, megabytes_below, taken_by
from benchmarks.soak.trend import WARM_UP, trend
from benchmarks.ui.served import Served
from undertow.run import open_run

SECONDS = 0.5  # between samples
# Files: zoom levels of a long run open theirs late, but no more than 32 are ever open.
ALLOWED = {"RSS MB": 8.0, "files": 8.0, "threads": 1.0}
RECORDER = "training's recorder"
OPEN_RUNS = {RECORDER: ("training",), "dashboard": ("training", "sweep")}  # whose index grows there
BUDGET_PER_HOUR, LEAST_BUDGET = 100_000_000, 5_000_000  # bytes: small enough to be thinned for most of the time
_QUESTIONS = ("run", "times", "diagnosis", "flow", "weights")


class Reader(threading.Thread):
    """Asks the dashboard for everything a page asks for, over and over."""

    def __init__(self, served: Served, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self.answers = self.refusals = self.mistakes = 0
        self._served, self._ended = served, ended

    def run(self) -> None:
        opener = build_opener(HTTPCookieProcessor())
        base = self._served.address.partition("?")[0]
        opener.open(self._served.address).read()
        while not self._ended.wait(0.2):
            self._ask(opener, base)

    def _ask(self, opener: OpenerDirector, base: str) -> None:
        asked = ["runs", "live?run=training"]
        for run in ("training", "sweep"):
            asked += [f"{name}?run={run}" for name in _QUESTIONS]
            asked += [f"tile?run={run}&quantity=gradient_norm&level=4&index=0"]
            asked += [f"scalar?run={run}&name=loss&first=0&last=1000000&columns=400"]
        for question in asked:
            try:
                with opener.open(f"{base}api/{question}", timeout=60) as answer:
                    answer.read(20 if question.startswith("live") else -1)  # a page that is opened and left
                self.answers += 1
            except HTTPError as problem:  # the run or its first frames are not there yet
                self.refusals += 1
                self.mistakes += problem.code >= 500


def soak(folder: Path, hours: float) -> int:
    budget = max(LEAST_BUDGET, int(BUDGET_PER_HOUR * hours))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    programs = {
        name: subprocess.Popen(
            [sys.executable, "-m", "benchmarks.soak.programs", name, str(folder), str(budget)],
            stdin=subprocess.PIPE,
            cwd=ROOT,
            env=environment,
        )
        for name in PROGRAMS
    }
    served, ended = Served(folder), threading.Event()
    reader = Reader(served, ended)
    times: list[float] = []
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    disk: list[float] = []
    warm: dict[str, Held] = {}
    grown: dict[str, Held] = {}
    runs = sorted({run for several in OPEN_RUNS.values() for run in several})
    try:
        while not children_of(programs["training"].pid):
            time.sleep(0.1)
        reader.start()
        watched = {name: process.pid for name, process in programs.items()}
        watched |= {RECORDER: children_of(programs["training"].pid)[0], "dashboard": served.process.pid}
        began = time.monotonic()
        while (now := time.monotonic() - began) < hours * 3600:
            for name, process in watched.items():
                for measure, value in zip(MEASURES, taken_by(process), strict=True):
                    taken[name, measure].append(value)
            disk.append(megabytes_below(folder / "training"))
            times.append(now)
            if not warm and now >= WARM_UP * hours * 3600:
                warm = {run: held_by(folder / run) for run in runs}
            time.sleep(max(0.0, began + len(times) * SECONDS - time.monotonic()))
        grown = {run: held_by(folder / run) for run in runs}
    finally:
        ended.set()
        if reader.ident is not None:
            reader.join(60)
        for process in programs.values():
            process.communicate()
        served.stop()
    codes = [process.returncode for process in programs.values()]
    must_grow = {name: sum(growth(warm[run], grown[run]) for run in held) for name, held in OPEN_RUNS.items()}
    is_flat = all([report(times, taken, must_grow, disk, budget), tell(folder, reader), not any(codes)])
    for run in runs:
        print(f"index of the open {run}: {growth_in_words(warm[run], grown[run])}")
    print(f"verdict: {'flat' if is_flat else 'NOT FLAT'}" + (f" (programs ended with {codes})" if any(codes) else ""))
    return 0 if is_flat else 1


def report(
    times: list[float],
    taken: dict[tuple[str, str], list[float]],
    must_grow: dict[str, float],
    disk: list[float],
    budget: int,
) -> bool:
    """`must_grow` is the growth in megabytes that is allowed to a process because of the runs that it reads."""
    print(f"{'':21}{'':8}{'first':>9}{'level':>9}{'last':>9}{'growth':>9}{'± 99 %':>9}{'allowed':>9}"
          f"{'at most per hour':>18}")  # fmt: skip
    verdicts: list[str] = []
    for (name, measure), values in taken.items():
        found = trend(times, values, floor=measure != "RSS MB")
        allowed = ALLOWED[measure] + (must_grow.get(name, 0.0) if measure == "RSS MB" else 0.0)
        verdicts.append(found.verdict(allowed))
        most = (found.growth + found.noise) / found.hours
        print(f"{name:21}{measure:8}{values[0]:9.1f}{found.level:9.1f}{values[-1]:9.1f}{found.growth:+9.2f}"
              f"{found.noise:9.2f}{allowed:9.1f}{most:+18.1f}  {verdicts[-1]}")  # fmt: skip
    fits = max(disk) <= 1.1 * budget / 1e6
    verdicts.append("flat" if fits else "over")
    print(f"training's run: {disk[-1]:.1f} MB on disk at the end, {max(disk):.1f} MB at most, "
          f"budget {budget / 1e6:.1f} MB: {'within' if fits else 'OVER'}")  # fmt: skip
    return set(verdicts) == {"flat"}


def tell(folder: Path, reader: Reader) -> bool:
    """What happened meanwhile: a soak in which nothing did proves nothing."""
    run = open_run(folder / "training")
    changes = [event.get("change") for event in run.reader.events() if event.get("kind") == "finding"]
    closed = changes.count("closed")
    sweep, numbers = open_run(folder / "sweep"), [int(place.name[6:]) for place in folder.glob("cycle-*")]
    print(
        f"meanwhile: {len(run.steps):,} steps, findings changed {len(changes)} times and closed {closed} times; "
        f"{len(sweep.steps) // 40:,} models in one watch with {len(sweep.reader.layers)} layers; "
        f"{max(numbers) + 1:,} watches; {reader.answers:,} answers of the dashboard "
        f"({reader.refusals} refused, {reader.mistakes} errors)"
    )
    return not reader.mistakes and min(closed, len(sweep.steps), max(numbers), reader.answers) > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="undertow-soak-", dir=options.folder))
    try:
        return soak(root, options.hours)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    sys.exit(main())
