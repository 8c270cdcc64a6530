"""Runs beside each other as text and JSON."""

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from undertow.show.report.text import table_of
from undertow.views.places import where
from undertow.views.run_comparison import Comparison, Curve, Pair
from undertow.views.scale import number

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LAYERS_SHOWN = 8
_CURVES_SHOWN = 4
_POINTS_SHOWN = 6
_SETTINGS_SHOWN = 20


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    """Every field, and `step` and `layer` where they diverge first."""
    return {"step": comparison.step, "layer": comparison.layer} | msgspec.to_builtins(comparison)


def comparison_report(comparison: Comparison, *, all_layers: bool = False) -> RenderableType:
    """Who they are, where they diverge, what differs, and their curves at a few steps."""
    parts: list[RenderableType] = [_runs(comparison), Text("")]
    for pair in comparison.pairs:
        parts += [*_divergence(pair, every_pair=len(comparison.pairs) > 1, all_layers=all_layers), Text("")]
    parts += [*_differences(comparison), Text("")]
    curves = comparison.curves if all_layers else _worth_showing(comparison)
    for curve in curves:
        parts += [*_curve(curve), Text("")]
    notes: list[str] = []
    if curves and _together(curves[0]) > 1:
        notes.append(f"Each number of a curve is the mean of {_together(curves[0]):,} steps.")
    more = len(comparison.curves) - len(curves)
    if more > 0:
        notes.append(f"{more} more curves in common: --all shows them.")
    if notes:
        parts.append(Text(" ".join(notes), style="dim"))
    return Group(*(parts[:-1] if isinstance(parts[-1], Text) and not parts[-1].plain else parts))


def _text(words: str, style: str = "") -> Text:
    """Names come from anywhere: signs that would move the cursor or turn the line around are not shown."""
    return Text("".join(sign if sign.isprintable() else "\ufffd" for sign in words), style)


def letter(place: int) -> str:
    return _LETTERS[place] if place < len(_LETTERS) else str(place + 1)


def _runs(comparison: Comparison) -> Table:
    table = table_of("", "run", "health", "status", "steps", "first finding", numbers=False)
    names = [run.name for run in comparison.runs]
    for place, run in enumerate(comparison.runs):
        alike = names.count(run.name) > 1
        name = f"{run.name} ({run.folder.rpartition('/')[2]})" if alike else run.name
        finding = "–" if run.finding is None else f"{run.finding}, step {run.finding_step:,}"
        table.add_row(letter(place), _text(name), str(run.health or "?"), run.status, f"{run.recorded:,}", finding)
    return table


def _divergence(pair: Pair, *, every_pair: bool, all_layers: bool) -> Iterator[RenderableType]:
    who = f"A and {letter(pair.run)}" if every_pair else "They"
    paths = [one.layer for one in pair.by_layer]
    if pair.reason:
        yield Text(f"{who} cannot be compared: {pair.reason}.")
    elif pair.step is None:
        yield Text(
            f"{who} are the same: equal gradient norms at all {pair.common_steps:,} common steps, "
            f"in {pair.common_layers:,} layers."
        )
    else:
        differ = _text(f": gradients differ in {where(pair.layers, paths)}.")
        yield Text(f"{who} diverge at step {pair.step:,}", "bold").append_text(differ)
        if pair.clear_step is None:
            yield Text("Nowhere by more than 10 %.")
        elif pair.clear_step > pair.step:
            yield Text(f"By more than 10 % from step {pair.clear_step:,}, first in {where(pair.clear_layers, paths)}.")
        early = sorted((step, name) for name, step in pair.scalars.items() if step <= pair.step)
        if early:
            more = f" and {len(early) - 3} more" if len(early) > 3 else ""
            names = ", ".join(f"{name} from step {step:,}" for step, name in early[:3])
            yield _text(f"By then also different: {names}{more}.")
    for layers, run in ((pair.only_in_first, 0), (pair.only_in_other, pair.run)):
        if layers:
            yield _text(f"Only {letter(run)} has {where(layers)}.")
    diverged = sorted((one for one in pair.by_layer if one.step is not None), key=lambda one: one.step or 0)
    shown = diverged if all_layers else diverged[:_LAYERS_SHOWN]
    if shown:
        yield Text("")
        table = table_of("layer", "from step", "A", letter(pair.run), "by 10 % from")
        for one in shown:
            clear = "–" if one.clear_step is None else f"{one.clear_step:,}"
            table.add_row(_text(one.layer), f"{one.step:,}", *(_norm(norm) for norm in one.norms), clear)
        yield table
        if len(diverged) > len(shown):
            yield Text(f"and {len(diverged) - len(shown):,} more layers: --all shows them.", style="dim")


def _norm(value: float | None) -> str:
    return "none" if value is None else f"{value:.5g}"


def _differences(comparison: Comparison) -> Iterator[RenderableType]:
    if not comparison.differences:
        yield Text("Their configurations are equal: same optimizers, settings, command, software and number of layers.")
        return
    yield Text("What differs in their configuration", style="bold")
    table = table_of("", *(letter(place) for place in range(len(comparison.runs))), numbers=False)
    for difference in comparison.differences[:_SETTINGS_SHOWN]:
        table.add_row(_text(difference.setting), *(_text(value or "–") for value in difference.values))
    yield table
    more = len(comparison.differences) - _SETTINGS_SHOWN
    if more > 0:
        yield Text(f"and {more} more: --json has them.", style="dim")


def _worth_showing(comparison: Comparison) -> list[Curve]:
    """The loss, and others that differ and have a number at most of the steps shown."""
    differ = {name for pair in comparison.pairs for name in pair.scalars}
    curves = [curve for curve in comparison.curves if curve.name in differ and _is_dense(curve)]
    return [*(curve for curve in comparison.curves if curve.name == "loss" and curve not in curves), *curves][
        :_CURVES_SHOWN
    ]


def _places(curve: Curve) -> list[int]:
    last = len(curve.steps) - 1
    return sorted({round(place) for place in np.linspace(0, last, _POINTS_SHOWN).tolist()}) if last >= 0 else []


def _is_dense(curve: Curve) -> bool:
    shown = _places(curve)
    return sum(values[place] is not None for values in curve.values for place in shown) > len(shown)


def _together(curve: Curve) -> int:
    """Of how many steps each of its numbers is the mean."""
    return curve.steps[1] - curve.steps[0] if len(curve.steps) > 1 else 1


def _curve(curve: Curve) -> Iterator[RenderableType]:
    places = _places(curve)
    which = "at step" if _together(curve) == 1 else "from step"
    table = table_of(_text(f"{curve.name[:40]} {which}").plain, *(f"{curve.steps[place]:,}" for place in places))
    for run, values in enumerate(curve.values):
        table.add_row(letter(run), *(_value(values[place]) for place in places))
    yield table
    for run, step in enumerate(curve.nonfinite_step):
        if step is not None:
            yield Text(f"{letter(run)} is NaN or infinite at step {step:,} for the first time.")


def _value(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else number(value)
