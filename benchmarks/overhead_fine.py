"""What Undertow itself adds to a step, to a fraction of a millisecond, on a machine that is not steady.

`python benchmarks/overhead_fine.py [--models mlp,cnn,gpt] [--every] [--minutes 3]`

On a machine with neighbours the same step is slower by a third a minute later, and blocks of several seconds, as in
`overhead.py`, differ by more than what is to be measured. Here one watched training is let go and taken up again every
second or so: its taps are removed, and installed again. Each stretch with taps ends when the background thread has
worked over all of its frames. It is compared with the stretches without taps next to it, and what is printed is
the mean over all, with twice its standard error (a tool that works now and then must not hide in a median), and the
median beside it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median, stdev

from overhead import _prepare_environment, _python

STEPS = {"mlp": 512, "cnn": 32, "gpt": 3}  # of a stretch
SETTLED = {"mlp": 2000, "cnn": 300, "gpt": 40}  # steps before any is timed, and
SETTLING = 4.0  # seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mlp,cnn,gpt", help="which trainings, separated by commas")
    parser.add_argument("--every", action="store_true", help="measure every step, in place of the default")
    parser.add_argument("--minutes", type=float, default=3.0, help="of timed steps, for each model")
    arguments = parser.parse_args()
    if Path(_python()).parent.parent != Path(sys.prefix):
        _prepare_environment()
        return subprocess.call([_python(), *sys.argv], env={**os.environ, "UNDERTOW_QUIET": "1"})
    for name in arguments.models.split(","):
        _measure(name, {"every": 1, "activations": False} if arguments.every else {}, 60 * arguments.minutes)
    return 0


def _measure(name: str, settings: dict[str, object], seconds: float) -> None:
    import torch

    import undertow
    from overhead_models import WORKLOADS
    from undertow.probe import taps

    torch.manual_seed(0)
    workload = WORKLOADS[name]()

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
        governor = watch._governor
        watch.close()
    error = 2 * stdev(added) / len(added) ** 0.5
    print(
        f"{workload.name}: plain step {1e3 * median(plain):.2f} ms; Undertow adds {1e3 * fmean(added):.3f} ± "
        f"{1e3 * error:.3f} ms (median {1e3 * median(added):.3f}; bar {1e3 * governor.allowed:.2f}) over {len(added)} "
        f"stretches of {count} steps; it believes {1e3 * (governor.seconds_per_step or 0):.3f} ms, gradients every "
        f"{governor._intervals['gradient']} steps",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
