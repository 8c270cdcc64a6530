"""What Undertow itself adds to a step, to a fraction of a millisecond, on a machine that is not steady.

`python -m benchmarks.overhead.fine [--models mlp,cnn,gpt] [--every] [--processes 5] [--minutes 1]`

On a machine with neighbours the same step is slower by a third a minute later, and blocks of several seconds, as in
`benchmarks.overhead`, differ by more than what is to be measured. Here one watched training is let go and taken up
again every second or so: its taps are removed, and installed again. Each stretch with taps ends when the background
thread has worked over all of its frames, and is compared with the stretches without taps on both sides of it. Of a
process the mean over all stretches is taken (a tool that works now and then must not hide in a median). How often a
process asks the system for memory depends on where things happen to lie in it, and that is a matter of luck: so
several processes are tried one after the other, and the median over them is printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from statistics import fmean, median, stdev

from benchmarks import ROOT
from benchmarks.environment import BESIDE_OTHERS

STEPS = {"mlp": 512, "cnn": 32, "gpt": 3}  # of a stretch
SETTLED = {"mlp": 2000, "cnn": 300, "gpt": 40}  # steps before any is timed, and
SETTLING = 4.0  # seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mlp,cnn,gpt", help="which trainings, separated by commas")
    parser.add_argument("--every", action="store_true", help="measure every step, in place of the default")
    parser.add_argument("--processes", type=int, default=5, help="for each model, one after the other")
    parser.add_argument("--minutes", type=float, default=1.0, help="of timed steps, for each process")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # one of these processes
    arguments = parser.parse_args()
    if arguments.here:
        _measure(arguments.models, arguments.every, 60 * arguments.minutes)
        return 0
    BESIDE_OTHERS.prepare()
    for name in arguments.models.split(","):
        _repeat(name, arguments)
    return 0


def _repeat(name: str, arguments: argparse.Namespace) -> None:
    command = [BESIDE_OTHERS.python, "-m", "benchmarks.overhead.fine", "--here"]
    command += ["--models", name, "--minutes", str(arguments.minutes)]
    command += ["--every"] * arguments.every
    found: list[tuple[float, float]] = []
    for _ in range(arguments.processes):
        said = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "UNDERTOW_QUIET": "1"}, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        print(said, end="", flush=True)
        plain, added = said.split("\t")[1:3]
        found.append((float(plain), float(added)))
    plain, added = (median(values) for values in zip(*found, strict=True))
    print(f"{name}: Undertow adds {added:.2f} ms, median of {len(found)} processes; plain {plain:.2f} ms\n", flush=True)


def _measure(name: str, every: bool, seconds: float) -> None:
    import torch

    import undertow
    from benchmarks.overhead.models import WORKLOADS
    from undertow.probe import taps

    torch.manual_seed(0)
    workload = WORKLOADS[name]()
    settings = {"every": 1, "activations": False} if every else {}

    def steps(count: int) -> None:
        for _ in range(count):
            loss = workload.loss()
            workload.optimizer.zero_grad()
            loss.backward()
            workload.optimizer.step()

    with tempfile.TemporaryDirectory(prefix="overhead-") as folder:
        watch = undertow.watch(workload.model, workload.optimizer, run_dir=f"{folder}/run", quiet=True, **settings)
        recorder, count = watch._recorder, STEPS[name]

        def stretch(watched: bool) -> float:
            began = time.perf_counter()
            if watched:
                taps.add(recorder)
            steps(count)
            if watched:
                watch._mailbox.flush(60)
            seconds = time.perf_counter() - began
            while watched and recorder._forward.running:  # modules are looked at in the next step: that is no plain one
                steps(1)
            taps.remove(recorder)
            return seconds / count

        began = time.perf_counter()
        steps(SETTLED[name])
        while time.perf_counter() - began < SETTLING:
            steps(8)
        taps.remove(recorder)
        began, plain, added = time.perf_counter(), [stretch(False)], []
        while time.perf_counter() - began < seconds:
            own = stretch(True)
            plain.append(stretch(False))
            added.append(own - (plain[-2] + plain[-1]) / 2)
        governor = watch._run.governor
        watch.close()
    error = 2 * stdev(added) / len(added) ** 0.5
    believed, interval = 1e3 * (governor.seconds_per_step or 0), governor._intervals["gradient"]
    print(
        f"{workload.name}: plain ms \t{1e3 * median(plain):.3f}\t{1e3 * fmean(added):.3f}\t added, ± {1e3 * error:.3f} "
        f"(median {1e3 * median(added):.3f}; allowed {1e3 * governor.allowed:.2f}) in {len(added)} stretches of "
        f"{count} steps; believed {believed:.3f}, gradients every {interval} steps"
    )


if __name__ == "__main__":
    sys.exit(main())
