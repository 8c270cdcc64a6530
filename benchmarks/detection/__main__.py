"""How well the diagnosis does: sick trainings, their healthy twins and healthy trainings, beside other judges.

`python -m benchmarks.detection [--tier development,practice,validation] [--seeds 3] [--jobs 2] [--only NAME,…]
                                [--every auto] [--record FILE] [--no-trainscope]`

An alarm is a finding of severity moderate or worse. Alarms on healthy runs, on twins, and before a fault begins are
false. The validation tier holds programs and faults that no rule had been tuned on when it was first measured: those
figures are the ones that count (see `corpus.validation`). The practice tier was held out once and is tuned on
now.
Every case runs in a process of its own, sick and healthy ones in turn. With `--record FILE` each run is appended to
the file as one line of JSON, and what the file already holds for the same code is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.detection.baselines import BASELINES
from benchmarks.detection.cases import TIERS, load
from benchmarks.detection.table import print_tier
from benchmarks.environment import BESIDE_OTHERS
from undertow.demos.case import Case

SOURCE = ROOT / "src" / "undertow"
TIMEOUT = 900  # seconds for all seeds of one case

Record = dict[str, Any]


def main() -> int:
    arguments = _arguments()
    arguments.no_trainscope = arguments.no_trainscope or not _has_trainscope()
    start = time.perf_counter()
    truths = {tier: _wanted(load(tier), arguments.only) for tier in arguments.tier.split(",")}
    records = _run_all(truths, arguments)
    for tier, cases in truths.items():
        runs: dict[str, list[Record]] = defaultdict(list)
        for record in records.values():
            if record["tier"] == tier and record["case"] in cases and "recorded" in record:
                runs[record["case"]].append(record)
        judges = ["Undertow", *BASELINES, *([] if arguments.no_trainscope else ["trainscope"])]
        print_tier(tier, cases, dict(runs), judges)
    print(f"\nsource {_fingerprint()}, seeds {arguments.seeds}, sampling {arguments.every}")
    print(f"{len(records)} runs, {time.perf_counter() - start:.0f} s")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", default=",".join(TIERS), help="which tiers, separated by commas")
    parser.add_argument("--seeds", type=int, default=3, help="seeds per case")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes at a time")
    parser.add_argument("--only", default="", help="names of cases, separated by commas; their twins run with them")
    parser.add_argument("--every", default="auto", help="sampling: auto (what users get) or a number of steps")
    parser.add_argument("--record", type=Path, default=None, help="file of runs, one JSON line each, to go on with")
    parser.add_argument("--no-trainscope", action="store_true", help="leave trainscope's own trainings out")
    return parser.parse_args()


def _wanted(cases: dict[str, Case], only: str) -> dict[str, Case]:
    names = {name for name in only.split(",") if name}
    if not names:
        return cases
    names |= {cases[name].twin for name in names if name in cases}
    return {name: case for name, case in cases.items() if name in names}


def _run_all(truths: dict[str, dict[str, Case]], arguments: argparse.Namespace) -> dict[tuple[Any, ...], Record]:
    fingerprint = _fingerprint()
    records: dict[tuple[Any, ...], Record] = {}
    if arguments.record and arguments.record.exists():
        lines = map(json.loads, arguments.record.read_text().splitlines())
        _merge(records, (line for line in lines if line["source"] == fingerprint and line["every"] == arguments.every))
    tools = ["worker"] + ([] if arguments.no_trainscope else ["trainscope"])
    jobs = [(tool, case) for case in _in_turn(truths) for tool in tools]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = {
            pool.submit(_run_case, tool, case, seeds, arguments.every): case
            for tool, case in jobs
            if (seeds := _missing(records, tool, case, arguments.seeds))
        }
        for number, future in enumerate(as_completed(waiting), 1):
            case = waiting[future]
            print(f"\r{number}/{len(waiting)} {case.tier} {case.name:40}", end="", file=sys.stderr, flush=True)
            found = [{**record, "source": fingerprint, "every": arguments.every} for record in future.result()]
            _merge(records, found)
            if arguments.record:
                with arguments.record.open("a") as file:
                    file.writelines(json.dumps(record) + "\n" for record in found)
    print(file=sys.stderr)
    return records


def _in_turn(truths: dict[str, dict[str, Case]]) -> Iterable[Case]:
    """Sick and healthy cases alternate: a busy spell of the machine falls on both."""
    for cases in truths.values():
        yield from sorted(cases.values(), key=lambda case: hashlib.sha256(case.name.encode()).digest())


def _missing(records: dict[tuple[Any, ...], Record], tool: str, case: Case, seeds: int) -> list[int]:
    judge = "Undertow" if tool == "worker" else "trainscope"
    return [
        seed
        for seed in range(seeds)
        if judge not in records.get((case.tier, case.name, seed), {"judges": {}})["judges"]
    ]


def _merge(records: dict[tuple[Any, ...], Record], found: Iterable[Record]) -> None:
    for record in found:
        known = records.setdefault((record["tier"], record["case"], record["seed"]), record)
        known["judges"] |= record["judges"]
        known |= {key: value for key, value in record.items() if key != "judges"}


def _run_case(tool: str, case: Case, seeds: list[int], every: str) -> list[Record]:
    """All that the process printed before it ended. A case that fails is said, and leaves the others alone."""
    python = sys.executable if tool == "worker" else BESIDE_OTHERS.python
    command = [python, "-m", f"benchmarks.detection.{tool}", case.tier, case.name, ",".join(map(str, seeds)), every]
    path = os.pathsep.join(filter(None, (str(ROOT), str(SOURCE.parent), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "UNDERTOW_QUIET": "1", "PYTHONPATH": path}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=False)
    except subprocess.TimeoutExpired:
        print(f"\n{case.name} took more than {TIMEOUT} s and is left out", file=sys.stderr)
        return []
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"\n{case.name} failed in {tool}: {last}", file=sys.stderr)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for record in records:
        if "recorded" in record and (record["status"] != "finished" or record["recorded"] < min(20, case.steps)):
            print(f"\n{case.name} was not watched to the end: {record['status']}", file=sys.stderr)
    return records


def _has_trainscope() -> bool:
    """It lives in the benchmarks' own environment, with the other real packages."""
    BESIDE_OTHERS.prepare()
    found = subprocess.run([BESIDE_OTHERS.python, "-c", "import trainscope"], capture_output=True, check=False)
    if found.returncode:
        print("trainscope cannot be had here and is left out", file=sys.stderr)
    return not found.returncode


def _fingerprint() -> str:
    files = sorted([*SOURCE.rglob("*.py"), *(ROOT / "corpus").rglob("*.py")])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main())
