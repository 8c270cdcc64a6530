"""The result as text: a row for every case, then a row for every judge."""

from __future__ import annotations

import math
from collections import Counter

from benchmarks.detection.lines import pointings
from benchmarks.detection.score import Run, Score, Verdict, harm, random_layer, score, wilson
from undertow.demos.case import Case


def print_tier(tier: str, truths: dict[str, Case], runs: dict[str, list[Run]], judges: list[str]) -> None:
    harms = {name: harm(truth, runs[name], runs.get(truth.twin, [])) for name, truth in truths.items()
             if truth.is_sick and name in runs}  # fmt: skip
    biting = {name for name, result in harms.items() if result is None or result[2]}
    print(f"\n== {tier} tier ==")
    own = score("Undertow", truths, runs, set(harms))
    _print_sick(own, harms)
    _print_healthy(own)
    _print_false(own)
    toothless = sorted(set(harms) - biting)
    if toothless:
        print(f"\nnot counted, because the fault does no harm beyond chance: {', '.join(toothless)}")
    print(f"\n{tier}: {len(biting)} sick cases, {len(own.healthy)} healthy ones; a case counts by most of its seeds,")
    print("intervals are Wilson's, 95 %; a miss waits for ever; alarms also raised on the twin are not credited")
    _print_judges([score(judge, truths, runs, biting) for judge in judges])
    chance = random_layer(truths, runs, biting)
    if chance is not None:
        print(f"{'a layer at random':30} right layer {chance:.1%}")
    _print_intervals(score("Undertow", truths, runs, biting))


def print_figures(tier: str, truths: dict[str, Case], runs: dict[str, list[Run]]) -> None:
    """Undertow's figures alone, of runs whose faults are known to bite."""
    own = score("Undertow", truths, runs, {name for name, truth in truths.items() if truth.is_sick})
    print(f"\n== {tier}: {len(own.sick)} sick cases, {len(own.healthy)} healthy ones ==")
    _print_judges([own])
    _print_intervals(own)
    _print_false(own)


def _print_sick(own: Score, harms: dict[str, tuple[float, float, bool] | None]) -> None:
    print(
        f"{'sick case':38} {'best':7} {'found':>5} {'1st':>4} {'any':>4} {'layer':>5} {'steps':>7}  "
        f"{'harm (sick, twin)':20} said first"
    )
    for name, group in sorted(own.sick.items()):
        truth, result = group[0].truth, harms[name]
        shown = "one seed only" if result is None else f"{result[0]:.3g}, {result[1]:.3g}"
        shown += "" if result is None or result[2] else "  no bite"
        layer = _count(group, "names_the_layer") if truth.layers else "–"
        print(
            f"{name:38} {truth.codes[0]:7} {_count(group, 'alarm'):>5} {_count(group, 'is_right_first'):>4} "
            f"{_count(group, 'is_right_somewhere'):>4} {layer:>5} {_waits(group):>7}  {shown:20} {_said(group)}"
        )


def _count(group: list[Verdict], question: str) -> str:
    return f"{sum(bool(getattr(verdict, question)) for verdict in group)}/{len(group)}"


def _waits(group: list[Verdict]) -> str:
    waits = sorted(verdict.wait for verdict in group)
    middle = waits[len(waits) // 2]
    return "never" if math.isinf(middle) else f"{middle:.0f}"


def _said(group: list[Verdict]) -> str:
    said = Counter(
        f"{v.reports[0]['codes'][0]} {(v.reports[0]['layers'] or ['–'])[0]} ({v.reports[0]['confidence']:.2f})"
        if v.reports
        else "nothing"
        for v in group
    )
    return said.most_common(1)[0][0] + ("  EARLY" if any(v.early for v in group) else "")


def _print_healthy(own: Score) -> None:
    print(f"\n{'healthy case':38} {'runs':>5} {'alarms':>7} {'remarks':>8}  codes")
    for name, runs in sorted(own.healthy.items()):
        reports = [report for run in runs for report in run["judges"]["Undertow"]]
        alarms = Counter(report["codes"][0] for report in reports if report["alarm"])
        codes = ", ".join(f"{code} ×{count}" for code, count in alarms.items())
        print(f"{name:38} {len(runs):>5} {sum(alarms.values()):>7} {len(reports) - sum(alarms.values()):>8}  {codes}")


def _print_false(own: Score) -> None:
    """What `undertow.detect.false_alarms` holds."""
    runs = [run for group in own.healthy.values() for run in group]
    alarms = Counter(
        code for run in runs for code in {one["codes"][0] for one in run["judges"]["Undertow"] if one["alarm"]}
    )
    found = ", ".join(f"{code} {count}" for code, count in alarms.most_common()) or "none"
    print(f"\nalarms on healthy runs, by code, of {len(runs)} runs of {len(own.healthy)} programs: {found}")


def _print_judges(scores: list[Score]) -> None:
    print(
        f"\n{'':30} {'found':>7} {'code 1st':>9} {'code any':>9} {'layer':>7} {'steps: median':>14} {'p90':>6} "
        f"{'false runs':>11} {'false cases':>12} {'sure, wrong':>12} {'noise/1000':>11}"
    )
    for one in scores:
        median, late = one.waits()
        print(
            f"{one.judge:30} {_share(one.cases('alarm')):>7} {_share(one.cases('is_right_first')):>9} "
            f"{_share(one.cases('is_right_somewhere')):>9} {_share(one.cases('names_the_layer', local=True)):>7} "
            f"{_steps(median):>14} {_steps(late):>6} {_share(one.false_runs()):>11} {_share(one.false_cases()):>12} "
            f"{_share(one.cases('is_confidently_wrong')):>12} {one.noise():>11.2f}"
        )


def _print_intervals(own: Score) -> None:
    print(f"\n{'Undertow':34} {'count':>9} {'share':>7}   95 % interval")
    for title, pair in {
        "cases found": own.cases("alarm"),
        "right code first": own.cases("is_right_first"),
        "right code among the alarms": own.cases("is_right_somewhere"),
        "right layer first (local faults)": own.cases("names_the_layer", local=True),
        "first finding sure and wrong": own.cases("is_confidently_wrong"),
        "healthy runs with an alarm": own.false_runs(),
        "healthy cases with an alarm": own.false_cases(),
        "late faults: runs alarmed too early": own.early(),
    }.items():
        _print_share(title, pair)
    _print_lines(own)


def _print_lines(own: Score) -> None:
    """Of right findings whose fault has a line that the author of the program has marked."""
    asked = pointings(own.sick)
    if not asked:
        return
    for title, question in {
        "first place at fault (± 1 line)": "is_first_right",
        "a place at fault among three": "is_among_first",
        "first place wrong": "is_first_wrong",
    }.items():
        _print_share(title, (sum(getattr(one, question) for one in asked), len(asked)))
    wrong = sorted({one.case for one in asked if one.is_first_wrong})
    silent = sorted({one.case for one in asked if not one.places})
    print(f"first place wrong: {', '.join(wrong) or 'none'}\nno place named: {', '.join(silent) or 'none'}")


def _print_share(title: str, pair: tuple[int, int]) -> None:
    low, high = wilson(*pair)
    print(f"{title:34} {f'{pair[0]}/{pair[1]}':>9} {_share(pair):>7}   {low:.1%} … {high:.1%}")


def _share(pair: tuple[int, int]) -> str:
    return f"{pair[0] / pair[1]:.1%}" if pair[1] else "–"


def _steps(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.0f}"
