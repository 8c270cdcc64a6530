"""From verdicts to figures: who found what, said what, named what, how soon, and who cried wolf."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from corpus import examination
from undertow.demos.case import Case

Report = dict[str, Any]
Run = dict[str, Any]
CONFIDENT = 0.8


@dataclass(slots=True)
class Verdict:
    """What one judge said of one sick run, beside the truth and what it said of the healthy twin."""

    truth: Case
    reports: Sequence[Report]
    twin: Sequence[Report]
    fault_lines: Sequence[Sequence[Any]] = ()  # file and line, as the program's author has marked them

    @property
    def alarm(self) -> Report | None:
        """The first alarm since the fault began that is not raised, same code and layer, on the twin as well."""
        also = {_sign(report) for report in self.twin if report["alarm"]}
        credited = [
            report
            for report in self.reports
            if report["alarm"] and report["step"] >= self.truth.onset and _sign(report) not in also
        ]
        return min(credited, key=lambda report: report["step"], default=None)

    @property
    def early(self) -> bool:
        """An alarm before the fault began is false."""
        return any(report["alarm"] and report["step"] < self.truth.onset for report in self.reports)

    @property
    def answer(self) -> Report | None:
        """What a user who reads one finding is told to act on; a remark tells nobody to act."""
        return self.reports[0] if self.reports and self.reports[0]["alarm"] else None

    @property
    def is_right_first(self) -> bool:
        return self.answer is not None and self._is_right(self.answer)

    @property
    def is_right_somewhere(self) -> bool:
        return any(self._is_right(report) for report in self.reports if report["alarm"])

    @property
    def first_right(self) -> Report | None:
        return next((report for report in self.reports if report["alarm"] and self._is_right(report)), None)

    @property
    def names_the_layer(self) -> bool:
        return self.answer is not None and any(map(self.truth.accepts, self.answer["layers"][:1]))

    @property
    def is_confidently_wrong(self) -> bool:
        return self.answer is not None and self.answer["confidence"] >= CONFIDENT and not self._is_right(self.answer)

    @property
    def wait(self) -> float:
        return math.inf if self.alarm is None else self.alarm["step"] - self.truth.onset

    def _is_right(self, report: Report) -> bool:
        return bool(set(report["codes"]) & set(self.truth.codes))


def _sign(report: Report) -> tuple[str, ...]:
    return (*report["codes"], *report["layers"][:1])


@dataclass(slots=True)
class Score:
    """One judge's figures. A case counts when most of its seeds do; misses wait for ever."""

    judge: str
    sick: dict[str, list[Verdict]] = field(default_factory=dict)
    healthy: dict[str, list[Run]] = field(default_factory=dict)

    def cases(self, question: str, local: bool = False) -> tuple[int, int]:
        asked = [group for group in self.sick.values() if group[0].truth.layers or not local]
        return sum(_mostly(bool(getattr(v, question)) for v in group) for group in asked), len(asked)

    def waits(self) -> tuple[float, float]:
        ordered = sorted(v.wait for group in self.sick.values() for v in group)
        if not ordered:
            return math.nan, math.nan
        return statistics.median_low(ordered), ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]

    def false_runs(self) -> tuple[int, int]:
        runs = [run for group in self.healthy.values() for run in group]
        return sum(self._alarms(run) for run in runs), len(runs)

    def false_cases(self) -> tuple[int, int]:
        return sum(any(self._alarms(run) for run in group) for group in self.healthy.values()), len(self.healthy)

    def early(self) -> tuple[int, int]:
        late = [v for group in self.sick.values() for v in group if v.truth.onset]
        return sum(v.early for v in late), len(late)

    def noise(self) -> float:
        """Remarks below an alarm per thousand steps of healthy training."""
        runs = [run for group in self.healthy.values() for run in group]
        remarks = sum(not report["alarm"] for run in runs for report in run["judges"][self.judge])
        return 1000 * remarks / max(1, sum(run["recorded"] for run in runs))

    def _alarms(self, run: Run) -> bool:
        return any(report["alarm"] for report in run["judges"][self.judge])


def score(judge: str, truths: dict[str, Case], runs: dict[str, list[Run]], biting: set[str]) -> Score:
    result = Score(judge)
    for name, group in runs.items():
        truth = truths[name]
        heard = [run for run in group if judge in run["judges"]]
        if not heard:
            continue
        if not truth.is_sick:
            result.healthy[name] = heard
        elif name in biting:
            twins = {run["seed"]: run["judges"].get(judge, []) for run in runs.get(truth.twin, [])}
            result.sick[name] = [
                Verdict(truth, run["judges"][judge], twins.get(run["seed"], []), run.get("fault_lines", ()))
                for run in heard
            ]
    return result


def random_layer(truths: dict[str, Case], runs: dict[str, list[Run]], biting: Iterable[str]) -> float | None:
    """How often a layer drawn blindly would be a guilty one."""
    shares = [run["random_layer"] for name in biting if truths[name].layers for run in runs[name]]
    return statistics.mean(shares) if shares else None


def harm(truth: Case, sick: list[Run], twins: list[Run]) -> tuple[float, float, bool] | None:
    """The metric with and without the fault, and whether they differ by more than seeds do; None if unknown."""
    if not twins or len(sick) < 2 or len(twins) < 2:
        return None
    with_fault = [run["metrics"].get(truth.bites, math.nan) for run in sick]
    without = [run["metrics"].get(truth.bites, math.nan) for run in twins]
    if not all(map(math.isfinite, with_fault)):
        return statistics.mean(with_fault), statistics.mean(without), True  # the metric itself is lost
    done, needed = examination.harm(with_fault, without)
    return statistics.mean(with_fault), statistics.mean(without), done > needed


def _mostly(values: Iterable[bool]) -> bool:
    listed = list(values)
    return 2 * sum(listed) > len(listed)


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval: honest for small numbers and for shares near 0 and 1."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return max(0.0, middle - half), min(1.0, middle + half)
