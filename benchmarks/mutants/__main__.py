"""Would the tests notice? Random mutants of the library's functions, and how many of them a test kills.

    python -m benchmarks.mutants --record                     which test enters which function: once, takes as the tests
    python -m benchmarks.mutants --count 60 --seed 1 --jobs 2
    python -m benchmarks.mutants --count 60 --seed 1 --list   what would be tried

Each mutant is one small change of one function (operators.py), in a copy of the repository. The tests that enter the
function run first; a kill counts only if the same test passes without the mutant. Results are kept line by line in
--write, and a second call goes on where the first one ended.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks import ROOT
from benchmarks.mutants.draw import Mutant, draw
from benchmarks.mutants.judge import Judge
from benchmarks.mutants.record import Map, record
from benchmarks.mutants.trees import copy

BAR = 0.93


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("tests", nargs="*", help="only these folders or files of tests")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="mutants, or tests of a recording, at the same time")
    parser.add_argument("--map", type=Path, default=ROOT / "build" / "mutants.map.gz")
    parser.add_argument("--record", action="store_true", help="make the map, or add to it")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument("--only", default="", help="numbers of mutants, such as 3,7,20-29")
    parser.add_argument(
        "--limit", type=float, default=1800.0, help="seconds for one mutant; after them it is undecided"
    )
    parser.add_argument(
        "--stop-after", type=float, default=1e6, help="seconds after which no mutant is begun, or a recording ends"
    )
    parser.add_argument("--write", type=Path, help="the file of results; default: build/mutants-SEED.jsonl")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    (ROOT / "build").mkdir(exist_ok=True)
    if options.record:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            record(copy(Path(folder) / "recording"), options.map, options.jobs, options.tests, options.stop_after)
        return
    mutants = draw(options.count, options.seed)
    numbers = _numbers(options.only) or list(range(len(mutants)))
    if options.list:
        for number in numbers:
            print(f"{number:3} {mutants[number].name}\n{mutants[number].difference}\n")
        return
    if not options.map.exists():
        sys.exit(f"{options.map} is not there: make it with --record")
    results = options.write or ROOT / "build" / f"mutants-{options.seed}.jsonl"
    done = _read(results, mutants)
    _try_all(options, mutants, [number for number in numbers if number not in done], results)
    sys.exit(_report(mutants, {number: one for number, one in _read(results, mutants).items() if number in numbers}))


def _try_all(options: argparse.Namespace, mutants: list[Mutant], numbers: list[int], results: Path) -> None:
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in numbers:
        waiting.put(number)
    judge = Judge(Map.read(options.map), options.tests, options.limit)
    end, lock = time.monotonic() + options.stop_after, threading.Lock()

    def work(folder: Path) -> None:
        tree = copy(folder)
        while time.monotonic() < end:
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            outcome = judge.judge(tree, mutants[number])
            line = [number, mutants[number].name, outcome.verdict, outcome.by, round(outcome.seconds)]
            with lock, results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                print(*line, flush=True)

    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        count = min(options.jobs, len(numbers))
        workers = [threading.Thread(target=work, args=(Path(folder) / str(number),)) for number in range(count)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    if judge.broken:
        print("left out, since they fail without a mutant:", *sorted(judge.broken), sep="\n  ")


def _read(results: Path, mutants: list[Mutant]) -> dict[int, list[str]]:
    """What is known already of these very mutants: the draw is another one when the library has changed."""
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    found = {number: rest for number, *rest in map(json.loads, lines)}
    return {number: rest for number, rest in found.items() if number < len(mutants) and rest[0] == mutants[number].name}


def _report(mutants: list[Mutant], outcomes: dict[int, list[str]]) -> int:
    for number, (name, verdict, by, _) in sorted(outcomes.items()):
        if verdict != "killed":
            print(f"\n{number}: {verdict} {by}\n{name}\n{mutants[number].difference}")
    verdicts = [verdict for _, verdict, *_ in outcomes.values() if verdict != "skipped"]
    killed = verdicts.count("killed")
    share = killed / max(len(verdicts), 1)
    print(f"\n{killed} of {len(verdicts)} mutants killed: {share:.1%}; the bar is {BAR:.0%}")
    return int(share < BAR)


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


if __name__ == "__main__":
    main()
