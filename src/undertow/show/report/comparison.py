"""Runs beside each other as text and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from undertow.views.comparison import Comparison, Curve, Pair
from undertow.views.levels import number
from undertow.views.places import where

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LAYERS_SHOWN = 8
_CURVES_SHOWN = 4
_POINTS_SHOWN = 6
_SETTINGS_SHOWN = 20


def comparison_to_json(comparison: Comparison) -> str:
    """Every field, and `step` and `layer` where they part first. NaN and infinity are null."""
    record = {"step": comparison.step, "layer": comparison.layer} | msgspec.to_builtins(comparison)
    return msgspec.json.format(msgspec.json.encode(record), indent=2).decode()


def comparison_report(comparison: Comparison, *, all_layers: bool = False) -> RenderableType:
    """Who they are, where they part, what was different, and their curves at a few steps."""
    parts: list[RenderableType] = [_runs(comparison), Text("")]
    for pair in comparison.pairs:
        parts += [*_parting(pair, every_pair=len(comparison.pairs) > 1, all_layers=all_layers), Text("")]
    parts += [*_differences(comparison), Text("")]
    curves = comparison.curves if all_layers else _worth_showing(comparison)
    for curve in curves:
        parts += [_curve(curve), Text("")]
    more = len(comparison.curves) - len(curves)
    if more > 0:
        parts.append(Text(f"{more} more curves in common: --json has them.", style="dim"))
    return Group(*(parts[:-1] if isinstance(parts[-1], Text) and not parts[-1].plain else parts))


def letter(place: int) -> str:
    return _LETTERS[place] if place < len(_LETTERS) else str(place + 1)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 2 else "right", overflow="fold")
    return table


def _runs(comparison: Comparison) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("", "run", "health", "status", "steps", "first finding"):
        table.add_column(column, overflow="fold", justify="right" if column == "steps" else "left")
    names = [run.name for run in comparison.runs]
    for place, run in enumerate(comparison.runs):
        alike = names.count(run.name) > 1
        name = f"{run.name} ({run.folder.rpartition('/')[2]})" if alike else run.name
        finding = "–" if run.finding is None else f"{run.finding}, step {run.finding_step:,}"
        table.add_row(letter(place), Text(name), str(run.health or "?"), run.status, f"{run.recorded:,}", finding)
    return table


def _parting(pair: Pair, *, every_pair: bool, all_layers: bool) -> Iterator[RenderableType]:
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
        yield Text.assemble(
            (f"{who} part at step {pair.step:,}", "bold"), f": gradients differ in {where(pair.layers, paths)}."
        )
        if pair.clear_step is None:
            yield Text("Nowhere by more than a tenth.")
        elif pair.clear_step > pair.step:
            yield Text(
                f"By more than a tenth from step {pair.clear_step:,}, first in {where(pair.clear_layers, paths)}."
            )
        before = [f"{name} from step {step:,}" for name, step in pair.scalars.items() if step <= pair.step]
        if before:
            yield Text(f"Also different: {', '.join(before)}.")
    for layers, run in ((pair.only_in_first, 0), (pair.only_in_other, pair.run)):
        if layers:
            yield Text(f"Only {letter(run)} has {where(layers)}.")
    parted = sorted((one for one in pair.by_layer if one.step is not None), key=lambda one: one.step or 0)
    shown = parted if all_layers else parted[:_LAYERS_SHOWN]
    if shown:
        yield Text("")
        table = _table("layer", "parts at", "A", letter(pair.run), "by a tenth")
        for one in shown:
            clear = "–" if one.clear_step is None else f"{one.clear_step:,}"
            table.add_row(Text(one.layer), f"step {one.step:,}", *(_norm(norm) for norm in one.norms), clear)
        yield table
        if len(parted) > len(shown):
            yield Text(f"and {len(parted) - len(shown):,} more layers: --all shows them.", style="dim")


def _norm(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def _differences(comparison: Comparison) -> Iterator[RenderableType]:
    if not comparison.differences:
        yield Text("They were started alike: same optimizers, settings, command, software and number of layers.")
        return
    yield Text("What differs in how they were started", style="bold")
    table = _table("", *(letter(place) for place in range(len(comparison.runs))))
    for difference in comparison.differences[:_SETTINGS_SHOWN]:
        table.add_row(Text(difference.setting), *(Text(value or "–") for value in difference.values))
    yield table
    more = len(comparison.differences) - _SETTINGS_SHOWN
    if more > 0:
        yield Text(f"and {more} more: --json has them.", style="dim")


def _worth_showing(comparison: Comparison) -> list[Curve]:
    """The loss, and others that differ."""
    differ = {name for pair in comparison.pairs for name in pair.scalars}
    return [curve for curve in comparison.curves if curve.name == "loss" or curve.name in differ][:_CURVES_SHOWN]


def _curve(curve: Curve) -> Table:
    spread = sorted({round(place) for place in np.linspace(0, max(0, len(curve.steps) - 1), _POINTS_SHOWN).tolist()})
    places: list[int] = [place for place in spread if place < len(curve.steps)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(curve.name[:40])
    for place in places:
        table.add_column(f"step {curve.steps[place]:,}", justify="right")
    for run, values in enumerate(curve.values):
        table.add_row(letter(run), *(_value(values[place]) for place in places))
    return table


def _value(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else number(value)
