"""Which layers are worst at one moment, and in what way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.schema import Finding, Severity
from undertow.views.grid import Grid
from undertow.views.palette import Cell
from undertow.views.scale import number

_UNUSUAL = 3.0  # times a layer's own median, or a third of it: less is the usual coming and going
_NEWS = {Cell.NONFINITE: "NaN or infinite", Cell.NO_GRADIENT: "no gradient", Cell.ZERO: "exactly zero"}


@dataclass(frozen=True, slots=True)
class Sufferer:
    path: str
    severity: Severity | None  # of the worst finding that names the layer
    what: str


def worst_layers(
    grid: Grid, column: int, usual: NDArray[np.float32], findings: Sequence[Finding], limit: int
) -> list[Sufferer]:
    """Named by a finding first, then what is not finite or missing, then what is furthest from its own median."""
    if not limit or not 0 <= column < grid.columns:
        return []
    named = _named(findings)
    cells, values = grid.cells[:, column], grid.values[:, column]
    with np.errstate(all="ignore"):
        ratios = np.nan_to_num(values / usual, nan=1.0, posinf=1.0, neginf=1.0)
        distance = np.abs(np.log(np.where(ratios > 0, ratios, 1.0)))
    ranked: list[tuple[tuple[float, float, float], int, Sufferer]] = []
    for row, path in enumerate(grid.rows):
        cell, finding = Cell(int(cells[row])), named.get(path)
        unusual = cell is Cell.VALUE and distance[row] > np.log(_UNUSUAL)
        if finding is None and cell not in _NEWS and not unusual:
            continue
        words = [_NEWS[cell]] if cell in _NEWS else []
        if cell is Cell.VALUE:
            words.append(number(float(values[row])) + (_ratio(float(ratios[row])) if unusual else ""))
        if finding is not None:
            words.append(f"{finding.code} {finding.name}")
        rank = -1 if finding is None else finding.severity.rank
        news = list(_NEWS).index(cell) if cell in _NEWS else len(_NEWS)
        order = (-float(rank), float(news), -float(distance[row]))
        ranked.append((order, row, Sufferer(path, finding.severity if finding else None, ", ".join(words))))
    return [sufferer for _, _, sufferer in sorted(ranked, key=lambda entry: entry[:2])[:limit]]


def _named(findings: Sequence[Finding]) -> Mapping[str, Finding]:
    """For each layer the worst finding that names it; remarks are no suffering."""
    found: dict[str, Finding] = {}
    for finding in findings:
        if finding.severity is Severity.INFO:
            continue
        for layer in finding.layers:
            if layer not in found or finding.severity.rank > found[layer].severity.rank:
                found[layer] = finding
    return found


def _ratio(ratio: float) -> str:
    return f", {number(ratio)} × its usual" if ratio > 1 else f", 1/{number(1 / ratio)} of its usual"
