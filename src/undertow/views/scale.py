"""The colour scale of a quantity: one for a whole run, so that a colour means the same at every step."""

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
