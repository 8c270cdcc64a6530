"""Try cases of the corpus under watch: what is found with the fault and without it, and what harm the fault does.

python -m corpus NAME… [--seeds 3] [--every auto]

The exit status is 1 unless every faulty run raises a right alarm, no healthy one raises any, and the fault does harm.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from corpus.examination import Examination, examine, harm
from corpus.registry import cases
from undertow.demos.case import Case

TRIED = ("development", "practice")  # the other tiers are held out


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m corpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="functions under @sick or @healthy")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--every", default="auto", help="sampling: auto (what users get) or a number of steps")
    arguments = parser.parse_args()
    known = {name: case for tier in TRIED for name, case in cases(tier).items()}
    for name in arguments.names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3, 0.4)
            parser.error(f"no case is called {name!r}; near it are {', '.join(near) or 'none'}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return max(_try(known[name], arguments.seeds, arguments.every) for name in arguments.names)


def _try(case: Case, seeds: int, every: str) -> int:
    print(f"{case.name}: {case.summary}")
    faulty = [_examine(case, seed, True, every) for seed in range(seeds)]
    failures = _report(case, faulty)
    if case.is_sick:
        twins = [_examine(case, seed, False, every) for seed in range(seeds)]
        failures += _report(case, twins) + _harm(case, faulty, twins)
    for failure in failures:
        print(f"  FAILED: {failure}")
    return 1 if failures else 0


def _examine(case: Case, seed: int, fault_on: bool, every: str) -> Examination:
    with tempfile.TemporaryDirectory() as folder:
        sampling = every if every == "auto" else int(every)
        return examine(case, Path(folder) / "run", seed, fault_on, sampling)


def _report(case: Case, examinations: list[Examination]) -> list[str]:
    failures: list[str] = []
    for one in examinations:
        kind = "faulty" if one.is_sick else "healthy"
        metrics = ", ".join(f"{name} {value:.3g}" for name, value in one.metrics.items())
        print(f"  {kind}, seed {one.seed}: {metrics}")
        for finding in one.diagnosis.findings:
            place = f"{finding.severity}, step {finding.detected_step}"
            print(f"    {finding.code} {finding.variant} ({place}): {finding.summary}")
        if one.is_sick and one.detection is None:
            failures.append(f"seed {one.seed}: no alarm with a right code ({', '.join(case.codes)})")
        if one.is_sick and one.detection is not None and one.names_a_guilty_layer is False:
            named, right = one.detection.layers[:1], sorted(case.layers)
            failures.append(f"seed {one.seed}: the layer named first is {named}, right are {right}")
        failures += [f"seed {one.seed}: {alarm.code} on a {kind} run" for alarm in one.false_alarms]
    return failures


def _harm(case: Case, faulty: list[Examination], twins: list[Examination]) -> list[str]:
    if case.bites not in faulty[0].metrics:
        return [f"the program returns no {case.bites!r}: say bites=… of {', '.join(faulty[0].metrics)}"]
    if len(faulty) < 2:
        return []
    done, needed = harm([one.metrics[case.bites] for one in faulty], [one.metrics[case.bites] for one in twins])
    print(f"  harm: {case.bites} differs by {done:.3g}; more than {needed:.3g} is needed")
    return [] if done > needed else [f"the fault does too little harm to {case.bites!r}"]


if __name__ == "__main__":
    sys.exit(main())
