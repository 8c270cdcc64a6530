"""How well the diagnosis does: every sick training, its healthy twin, and the healthy zoo, over seeds.

`python benchmarks/detection.py [--seeds 3] [--only NAME,…] [--every auto|1] [--json FILE]`

An alarm is a finding of severity moderate or worse. Alarms on healthy runs, on twins, and before a fault
begins are false. Seeds of one case agree almost always, so the intervals (Wilson, 95 %) are over cases.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import torch

from undertow.faults.examination import Examination, examine
from undertow.faults.training import Training, hospital, zoo


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="seeds per case")
    parser.add_argument("--only", default="", help="names of trainings, separated by commas")
    parser.add_argument("--every", default="auto", help="sampling: auto (what users get) or a number of steps")
    parser.add_argument("--json", type=Path, default=None, help="also write every run's verdict to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    every = arguments.every if arguments.every == "auto" else int(arguments.every)
    wanted = {name for name in arguments.only.split(",") if name}

    def run_all(trainings: dict[str, Training], fault_on: bool) -> dict[str, list[Examination]]:
        return {
            name: [_run(training, seed, fault_on, every) for seed in range(arguments.seeds)]
            for name, training in trainings.items()
            if not wanted or name in wanted
        }

    start = time.perf_counter()
    sick = run_all(hospital(), fault_on=True)
    twins = run_all(hospital(), fault_on=False)
    healthy = run_all(zoo(), fault_on=False)
    _print_sick(sick)
    _print_healthy(healthy, "healthy zoo")
    _print_healthy(twins, "healthy twins")
    _print_totals(sick, {**healthy, **{f"{name} (twin)": runs for name, runs in twins.items()}})
    print(f"\n{arguments.seeds} seeds, sampling {arguments.every}, {time.perf_counter() - start:.0f} s")
    if arguments.json:
        everything = [run for group in (sick, twins, healthy) for runs in group.values() for run in runs]
        arguments.json.write_text(json.dumps([_record(run) for run in everything], indent=1))
    return 0


def _run(training: Training, seed: int, fault_on: bool, every: int | str) -> Examination:
    print(f"\r{training.name:30} seed {seed} ", end="", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        examination = examine(training, Path(folder) / "run", seed, fault_on, every)
    if not examination.was_watched:
        raise SystemExit(f"\n{training.name} was not watched to the end: status {examination.status}")
    return examination


def _print_sick(cases: dict[str, list[Examination]]) -> None:
    print(f"\r{'sick training':28} {'code':7} {'found':>6} {'layer':>6} {'first':>6} {'false':>6}  steps to detect")
    for name, runs in cases.items():
        waits = [run.steps_to_detect for run in runs if run.steps_to_detect is not None]
        layer = "–" if runs[0].names_a_guilty_layer is None else _share(run.names_a_guilty_layer for run in runs)
        print(
            f"{name:28} {runs[0].training.code:7} {_share(run.detection for run in runs):>6} {layer:>6} "
            f"{_share(run.is_ranked_first for run in runs):>6} {sum(len(run.false_alarms) for run in runs):>6}  "
            f"{', '.join(map(str, waits)) or 'never'}"
        )


def _print_healthy(cases: dict[str, list[Examination]], title: str) -> None:
    print(f"\n{title:28} {'runs':>5} {'alarms':>7} {'remarks':>8}  codes")
    for name, runs in cases.items():
        alarms = Counter(alarm.code for run in runs for alarm in run.alarms)
        remarks = sum(len(run.diagnosis.findings) - len(run.alarms) for run in runs)
        codes = ", ".join(f"{code} ×{count}" for code, count in alarms.items())
        print(f"{name:28} {len(runs):>5} {sum(alarms.values()):>7} {remarks:>8}  {codes}")


def _print_totals(sick: dict[str, list[Examination]], healthy: dict[str, list[Examination]]) -> None:
    print(f"\n{'over cases':34} {'share':>9}   95 % interval")
    faults = [runs for name, runs in sick.items() if runs[0].training.code != "UPD004"]
    local = [runs for runs in sick.values() if runs[0].training.layers]
    _print_share("sick: found on every seed", [all(run.detection for run in runs) for runs in faults])
    _print_share("sick: guilty layer named first", [all(run.names_a_guilty_layer for run in runs) for runs in local])
    _print_share("sick: right finding ranked first", [all(run.is_ranked_first for run in runs) for runs in faults])
    _print_share("sick: alarm before the fault", [any(run.false_alarms for run in runs) for runs in sick.values()])
    _print_share("healthy: any false alarm", [any(run.alarms for run in runs) for runs in healthy.values()])
    runs = [run for group in healthy.values() for run in group]
    _print_share("healthy runs with a false alarm", [bool(run.alarms) for run in runs])
    waits = sorted(run.steps_to_detect for group in faults for run in group if run.steps_to_detect is not None)
    if waits:
        late = waits[min(len(waits) - 1, int(0.9 * len(waits)))]
        soon = sum(wait <= 20 for wait in waits)
        print(f"steps to detect: median {median(waits):g}, p90 {late}, within 20 steps {soon} of {len(waits)}")


def _share(values: Any) -> str:
    listed = [bool(value) for value in values]
    return f"{sum(listed)}/{len(listed)}"


def _print_share(title: str, outcomes: list[bool]) -> None:
    if outcomes:
        low, high = wilson(sum(outcomes), len(outcomes))
        print(f"{title:34} {f'{sum(outcomes)}/{len(outcomes)}':>9}   {low:.1%} … {high:.1%}")


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share: honest for small numbers, and for none or all."""
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * (share * (1 - share) / trials + z * z / (4 * trials * trials)) ** 0.5 / (1 + z * z / trials)
    return max(0.0, centre - half), min(1.0, centre + half)


def _record(run: Examination) -> dict[str, Any]:
    return {
        "training": run.training.name, "seed": run.seed, "sick": run.is_sick, "code": run.training.code,
        "onset": run.training.onset, "steps_to_detect": run.steps_to_detect, "layer": run.names_a_guilty_layer,
        "ranked_first": run.is_ranked_first, "false_alarms": [alarm.code for alarm in run.false_alarms],
        "findings": [[f.code, f.severity, list(f.layers), f.detected_step] for f in run.diagnosis.findings],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
