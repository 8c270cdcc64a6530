"""Does watching change anything? Trainings of other people's packages, plain and watched, compared to the bit.

`python -m benchmarks.unchanged [--only PATTERN] [--jobs N] [--list]`

Every program trains a few steps three times, each in a process of its own from the same seeds: plain, plain once
more, and watched with `undertow.watch(every=1, activations=True)`, which finds models and optimizers by itself.
Weights, buffers, gradients, optimizer state, whatever else the program returns, the random streams of Python, numpy
and torch, torch's settings, stdout, stderr, warnings with their places, and the exit status must come out the same.
The second plain training shows what is not the same in itself. The packages are installed into a virtual environment
of the benchmark's own; one that cannot be had here is listed with the reason. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

from benchmarks import ROOT
from benchmarks.environment import OF_OTHERS
from benchmarks.unchanged.verdict import Verdict, judge

QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="programs whose name fits this pattern, such as 'loops/*'")
    parser.add_argument("--jobs", type=int, default=1, help="how many groups run at a time")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    arguments = parser.parse_args()
    if not OF_OTHERS.is_this:
        OF_OTHERS.prepare()
        return OF_OTHERS.call("benchmarks.unchanged", *sys.argv[1:], **QUIET)
    chosen = {group: fit for group, names in _all_programs().items() if (fit := _fitting(names, arguments.only))}
    if arguments.list:
        print("\n".join(name for names in chosen.values() for name in names))
        return 0
    total = sum(map(len, chosen.values()))
    if not total:
        print(f"no program is called like {arguments.only!r}; --list prints their names", file=sys.stderr)
        return 2
    verdicts: list[Verdict] = []

    def run(group: str) -> None:
        for verdict in _verdicts(group, chosen[group]):
            verdicts.append(verdict)
            line = f"[{len(verdicts)} of {total}] {verdict.name}: {verdict.result}"
            print(line, f"({verdict.detail})" if verdict.is_failure else "", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(run, chosen))
    return _print_table(verdicts, total)


def _all_programs() -> dict[str, list[str]]:
    from benchmarks.unchanged.worker import group_of

    files = sorted((Path(__file__).parent / "programs").glob("*.py"))
    return {file.stem: [program.name for program in group_of(file.stem).programs] for file in files}


def _fitting(names: list[str], pattern: str) -> list[str]:
    return [name for name in names if fnmatch(name, pattern) or fnmatch(name, f"*{pattern}*")]


def _verdicts(group: str, names: list[str]):
    command = [sys.executable, "-m", "benchmarks.unchanged.worker", group, *names]
    worker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, **QUIET})
    with worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            if line.startswith('{"name"'):  # a package may print something while it is imported
                yield judge(json.loads(line))


def _print_table(verdicts: list[Verdict], total: int) -> int:
    for verdict in sorted(verdicts, key=lambda verdict: verdict.name):
        print(f"{verdict.name:44} {verdict.result:28} {verdict.detail}".rstrip())
    counts = Counter(verdict.result for verdict in verdicts)
    print(f"\n{total} programs:", ", ".join(f"{count} {result}" for result, count in counts.most_common()))
    if len(verdicts) < total:
        print(f"{total - len(verdicts)} were not run: their worker has died")
    return 1 if len(verdicts) < total or any(verdict.is_failure for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
