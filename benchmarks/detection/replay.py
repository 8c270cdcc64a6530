"""Judge recorded runs again with the rules of this tree: minutes, no torch, no training.

    python benchmarks/detection/replay.py --runs DIR [--tier practice,validation] [--jobs 1] [--write A.jsonl] [--cases]
    python benchmarks/detection/replay.py --compare A.jsonl B.jsonl

DIR is what `record.py` has filled: `<tier>/<case>/`, each a run beside its `truth.json`. Printed are the figures of
every tier, with `--cases` a row for every case. `--write` keeps every diagnosis, a line of JSON for each run, so that
`--compare` can set two versions of the rules side by side: it ends with 1 where anything but words differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

if not __package__:  # called by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.detection.difference import compare, read
from benchmarks.detection.recorded import Replayed, recorded_runs, replay_all, truth_of
from benchmarks.detection.table import print_figures, print_tier


def main() -> int:
    arguments = _arguments()
    if arguments.compare:
        return compare(*map(read, arguments.compare))
    if arguments.runs is None:
        print("say where the runs are: --runs DIR", file=sys.stderr)
        return 2
    folders = recorded_runs(arguments.runs, filter(None, arguments.tier.split(",")))
    start = time.perf_counter()
    replayed: dict[str, list[Replayed]] = {}
    for number, run in enumerate(replay_all(folders, arguments.jobs), 1):
        replayed.setdefault(run["tier"], []).append(run)
        if sys.stderr.isatty():
            print(f"\r{number}/{len(folders)} {run['tier']} {run['case']:50}", end="", file=sys.stderr)
    if arguments.write:
        write(arguments.write, [run for runs in replayed.values() for run in runs])
    for tier, runs in replayed.items():
        truths = {run["case"]: truth_of(run) for run in runs}
        by_case: dict[str, list[Replayed]] = {}
        for run in runs:
            by_case.setdefault(run["case"], []).append(run)
        if arguments.cases:
            print_tier(tier, truths, by_case, ["Undertow"])
        else:
            print_figures(tier, truths, by_case)
    print(f"\n{len(folders)} runs, {time.perf_counter() - start:.0f} s")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of recorded runs")
    parser.add_argument("--tier", default="", help="which tiers, separated by commas; all without it")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--write", type=Path, help="file for the diagnoses, a line of JSON for each run")
    parser.add_argument("--cases", action="store_true", help="a row for every case, too")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("A", "B"), help="two files that --write has written")
    return parser.parse_args()


def write(file: Path, runs: list[Replayed]) -> None:
    with file.open("w") as lines:
        for run in runs:
            line = {key: run[key] for key in ("tier", "case", "seed", "status", "recorded", "diagnosis")}
            lines.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
