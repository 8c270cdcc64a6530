"""The colour scale of a quantity, one for a whole run, so that a colour means the same at every step; and its ticks."""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from undertow.schema import QUANTITIES
from undertow.store.reader import RunReader
from undertow.store.window import Window
from undertow.views.tiles import subjects


class ScaleKind(StrEnum):
    LOGARITHMIC = "logarithmic"
    LINEAR = "linear"
    SIGNED = "signed"  # logarithmic on both sides of zero, from `low` in size to `high`


@dataclass(frozen=True, slots=True)
class Scale:
    kind: ScaleKind
    low: float
    high: float
    diverging: bool = False  # the middle of the scale is where neither side is meant


_SIGNED = ("_mean", "_min", "_max", "_skewness", "_kurtosis")
_OVERVIEW = 64  # columns: enough to know the range
_OUTSIDE = 0.002  # of the cells on each side may lie beyond the scale: a single odd one must not flatten the rest
_LEAST_DECADES = 2


def scale_of(reader: RunReader, quantity: str) -> Scale:
    """Linear for shares and cosines, which have natural ends; logarithmic for all that may have any size."""
    known = QUANTITIES.get(quantity)
    unit = known.unit if known is not None else "1"
    if "cosine" in quantity:
        return Scale(ScaleKind.LINEAR, -1.0, 1.0, diverging=True)
    if unit == "share":
        return Scale(ScaleKind.LINEAR, 0.0, 1.0)
    values = _values(reader, quantity)
    if unit in ("state", "flag", "index"):
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
        return Scale(ScaleKind.LINEAR, low, max(high, low + 1))
    low, high = _decades(np.abs(values[values != 0]))
    signed = quantity.endswith(_SIGNED) and bool((values < 0).any())
    return Scale(ScaleKind.SIGNED if signed else ScaleKind.LOGARITHMIC, low, high, diverging=signed)


def usual_of(reader: RunReader, quantity: str) -> NDArray[np.float32]:
    """For each layer the median of its means over the intervals of the run; NaN where there is none."""
    means = _overview(reader, quantity).mean
    usual = np.full(means.shape[1], np.nan, np.float32)
    measured = np.isfinite(means).any(axis=0)
    usual[measured] = np.nanmedian(np.where(np.isfinite(means), means, np.nan)[:, measured], axis=0)
    return usual


def _values(reader: RunReader, quantity: str) -> NDArray[np.float32]:
    """Finite values of the whole run, the smallest and the largest of each interval."""
    overview = _overview(reader, quantity)
    values = np.concatenate([overview.minimum.ravel(), overview.maximum.ravel()])
    return values[np.isfinite(values)]


def _overview(reader: RunReader, quantity: str) -> Window:
    steps = reader.steps
    first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, -1)
    return reader.window(quantity, first, last, _OVERVIEW, subjects(reader, quantity))


def _decades(sizes: NDArray[np.float32]) -> tuple[float, float]:
    """Whole powers of ten around the sizes, so that a run that grows seldom changes its colours."""
    if not sizes.size:
        return 0.1, 10.0
    logarithms = np.log10(sizes.astype(np.float64))
    low, high = np.quantile(logarithms, [_OUTSIDE, 1 - _OUTSIDE])
    first, last = math.floor(low), math.ceil(high)
    if last - first < _LEAST_DECADES:
        first, last = first - 1, first - 1 + _LEAST_DECADES
    return 10.0**first, 10.0**last


def levels_of(scale: Scale, values: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.float32]:
    """From 0 at the low end to 1 at the high end; beyond the ends it is cut off. NaN stays NaN."""
    numbers = values.astype(np.float64)
    if scale.kind is ScaleKind.LINEAR:
        levels = (numbers - scale.low) / (scale.high - scale.low)
    else:
        with np.errstate(divide="ignore"):
            sizes = np.log(np.abs(numbers) / scale.low) / math.log(scale.high / scale.low)
        if scale.kind is ScaleKind.SIGNED:
            levels = 0.5 + 0.5 * np.sign(numbers) * np.clip(sizes, 0, 1)
        else:
            levels = np.where(numbers <= 0, 0.0, sizes)
    return np.clip(levels, 0, 1).astype(np.float32)


def value_at(scale: Scale, level: float) -> float:
    if scale.kind is ScaleKind.LINEAR:
        return scale.low + level * (scale.high - scale.low)
    if scale.kind is ScaleKind.SIGNED:
        side = 2 * level - 1
        return math.copysign(scale.low * (scale.high / scale.low) ** abs(side), side) if side else 0.0
    return scale.low * (scale.high / scale.low) ** level


def ticks_of(scale: Scale, most: int) -> list[tuple[float, str]]:
    """At most that many levels with their numbers: whole decades where the scale has decades."""
    if scale.kind is ScaleKind.LOGARITHMIC:
        first, last = round(math.log10(scale.low)), round(math.log10(scale.high))
        every = max(1, -(-(last - first) // max(1, most - 1)))
        decades = range(first, last + 1, every)
        return [((decade - first) / max(1, last - first), number(10.0**decade)) for decade in decades]
    places = (0.0, 0.5, 1.0) if most < 5 else (0.0, 0.25, 0.5, 0.75, 1.0)
    return [(place, number(value_at(scale, place))) for place in places]


def number(value: float) -> str:
    """Three digits: `0.012`, `340`, `1e-7`, `2.5e+12`."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if 1e-3 <= abs(value) < 1e5:
        return f"{float(f'{value:.3g}'):.10f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{exponent[0] if exponent[0] == '-' else '+'}{int(exponent[1:])}"
