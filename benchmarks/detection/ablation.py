"""What each condition contributes: found, first and false alarms without it, on recorded runs.

    python benchmarks/detection/ablation.py --runs DIR [--tier practice,validation] [--jobs 1]
                                            [--only OPT007,…] [--names]

Every recorded run is replayed once (see `replay.py`); then, for every condition that it shows, the findings of that
condition are left out and the rest is explained and ranked again. A condition that changes no figure is a candidate
to go. `found`, `first`, `layer` and `false` are what leaving it out changes: −2 found means that two sick cases are
missed without it, −3 false that three healthy ones would raise no alarm any more. On which cases it matters is said of
the practice tier; of the validation tier only with `--names`, since who writes rules must not read it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

if not __package__:  # called by its path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.detection.recorded import Condition, Replayed, recorded_runs, replay_all, truth_of
from benchmarks.detection.score import Score, score

TIERS = "practice,validation"
HELD_OUT = "validation"


@dataclass(slots=True)
class Outcome:
    """The cases of one tier for which each question is answered with yes."""

    found: set[str] = field(default_factory=set)
    first: set[str] = field(default_factory=set)
    layer: set[str] = field(default_factory=set)
    false: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, scored: Score) -> Outcome:
        outcome = cls()
        for name, group in scored.sick.items():
            verdict = group[0]
            outcome.found |= {name} if verdict.alarm else set()
            outcome.first |= {name} if verdict.is_right_first else set()
            outcome.layer |= {name} if verdict.truth.layers and verdict.names_the_layer else set()
        for name, runs in scored.healthy.items():
            outcome.false |= {name} if any(report["alarm"] for report in runs[0]["judges"]["Undertow"]) else set()
        return outcome

    def changes(self, other: Outcome) -> dict[str, tuple[set[str], set[str]]]:
        """Per question, the cases that are lost and gained on the way to the other."""
        pairs = {
            question: (getattr(self, question), getattr(other, question))
            for question in ("found", "first", "layer", "false")
        }
        return {question: (before - after, after - before) for question, (before, after) in pairs.items()}


def main() -> int:
    arguments = _arguments()
    only = {code for code in arguments.only.split(",") if code}
    folders = recorded_runs(arguments.runs, filter(None, arguments.tier.split(",")))
    tiers: dict[str, list[Replayed]] = {}
    for run in replay_all(folders, arguments.jobs, ablate=True):
        tiers.setdefault(run["tier"], []).append(run)
    for tier, runs in tiers.items():
        _print_tier(tier, runs, only, with_names=arguments.names or tier != HELD_OUT)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="folder of recorded runs")
    parser.add_argument("--tier", default=TIERS, help="which tiers, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", default="", help="codes, separated by commas")
    parser.add_argument("--names", action="store_true", help="name the cases of the validation tier, too")
    return parser.parse_args()


def outcome_without(runs: Iterable[Replayed], left_out: Condition | None) -> Outcome:
    """What is right and wrong if one condition, or none, had never been written."""
    judged: dict[str, list[Replayed]] = {}
    for run in runs:
        without = {(code, key): said for code, key, said in run["without"]}
        said = without.get(left_out, run["judges"]["Undertow"]) if left_out else run["judges"]["Undertow"]
        judged.setdefault(run["case"], []).append({**run, "judges": {"Undertow": said}})
    truths = {name: truth_of(group[0]) for name, group in judged.items()}
    return Outcome.of(score("Undertow", truths, judged, {name for name, one in truths.items() if one.is_sick}))


def _print_tier(tier: str, runs: list[Replayed], only: set[str], with_names: bool) -> None:
    every = outcome_without(runs, None)
    shown: dict[Condition, int] = {}
    for run in runs:
        for code, key, _ in run["without"]:
            shown[code, key] = shown.get((code, key), 0) + 1
    print(f"\n== {tier}: {len(runs)} runs ==")
    print(f"with all: found {len(every.found)}, first {len(every.first)}, layer {len(every.layer)}, "
          f"false {len(every.false)}")  # fmt: skip
    print(
        f"\n{'without':10} {'condition':34} {'runs':>5} {'found':>6} {'first':>6} {'layer':>6} {'false':>6}  matters on"
    )
    for condition, count in sorted(shown.items()):
        if only and condition[0] not in only:
            continue
        changes = every.changes(outcome_without(runs, condition))
        cells = [f"{len(gained) - len(lost):+d}" if lost or gained else "" for lost, gained in changes.values()]
        lost = sorted(set().union(*(pair[0] for pair in changes.values())))
        gained = sorted(set().union(*(pair[1] for pair in changes.values())) - set(lost))
        said = ", ".join([*lost, *(f"(better) {name}" for name in gained)]) if with_names else ""
        print(
            f"{condition[0]:10} {condition[1] or '–':34} {count:>5} " + " ".join(f"{c:>6}" for c in cells) + f"  {said}"
        )


if __name__ == "__main__":
    sys.exit(main())
