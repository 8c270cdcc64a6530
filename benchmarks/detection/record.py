"""Train every case of the corpus once under watch and keep the runs, for `replay.py` and `ablation.py`.

    python benchmarks/detection/record.py --runs DIR [--tier development,practice,validation] [--jobs 1] [--seed 0]
                                          [--only NAME,…] [--every auto]

DIR should be outside the repository: about 2 GB. Each run lands in `<tier>/<case>/` with a `truth.json` beside its own
files, as soon as it is complete; a second call goes on where the first one stopped. Every case has a process of its
own, so that no case finds what another one has left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

if not __package__:  # called by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.detection.cases import TIERS, load
from benchmarks.detection.recorded import TRUTH
from corpus.fault_lines import fault_lines
from undertow.demos.case import Case

LONGEST = 900  # seconds of one case


def main() -> int:
    arguments = _arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    only = {name for name in arguments.only.split(",") if name}
    cases = [case for tier in arguments.tier.split(",") for case in load(tier).values()]
    waiting = [
        case
        for case in cases
        if (not only or case.name in only) and not folder_of(arguments.runs, case).exists()
    ]  # fmt: skip
    failed = 0
    running: set[int] = set()
    for number, case in enumerate(waiting, 1):
        if len(running) >= arguments.jobs:
            failed += _wait(running)
        print(f"{number}/{len(waiting)} {case.tier} {case.name}", file=sys.stderr, flush=True)
        running.add(_fork(case, arguments))
    while running:
        failed += _wait(running)
    print(f"{len(waiting) - failed} runs recorded, {len(cases) - len(waiting)} left aside, {failed} failed")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--tier", default=",".join(TIERS), help="which tiers, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", default="", help="names of cases, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", default="auto", help="sampling: auto (what users get) or a number of steps")
    return parser.parse_args()


def folder_of(runs: Path, case: Case) -> Path:
    return runs / case.tier / case.name.replace("/", "_")


def _fork(case: Case, arguments: argparse.Namespace) -> int:
    """Torch and the corpus are imported once, in the parent; what a training changes stays in its child."""
    child = os.fork()
    if child:
        return child
    signal.alarm(LONGEST)
    try:
        record(case, folder_of(arguments.runs, case), arguments.seed, arguments.every)
        os._exit(0)
    except BaseException as error:
        print(f"{case.tier} {case.name} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _wait(running: set[int]) -> int:
    child, status = os.wait()
    running.remove(child)
    return 1 if status else 0


def record(case: Case, folder: Path, seed: int = 0, every: str = "auto") -> None:
    """One case into its folder, which is there only once it is complete."""
    import undertow

    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with undertow.watch(None, run_dir=part, every=every if every == "auto" else int(every), quiet=True):
        metrics = case.run(seed=seed)
    truth = {
        "tier": case.tier, "case": case.name, "seed": seed, "metrics": metrics, "codes": list(case.codes),
        "layers": sorted(case.layers), "onset": case.onset, "steps": case.steps, "twin": case.twin,
        "seconds": round(time.perf_counter() - start, 2), "fault_lines": fault_lines(case),
    }  # fmt: skip
    (part / TRUTH).write_text(json.dumps(truth))
    part.rename(folder)


if __name__ == "__main__":
    sys.exit(main())
