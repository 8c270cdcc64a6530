"""A line over steps in as many points as a picture has columns: nothing is left out, spikes least of all."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.store.window import Window


@dataclass(frozen=True, slots=True)
class Line:
    """One entry per interval of steps; NaN where no finite value was measured."""

    steps: NDArray[np.int64]  # first step of each interval
    minimum: NDArray[np.float64]
    mean: NDArray[np.float64]
    maximum: NDArray[np.float64]
    nonfinite: NDArray[np.bool_]  # an infinite value, or for scalars NaN, lies in the interval


_USUALLY = 0.9  # share of steps that have a number, above which a gap is a number that was not finite


def line_of_scalar(steps: NDArray[np.int64], values: NDArray[np.float64], columns: int) -> Line:
    """NaN means "not logged" in a scalar that is logged now and then, and "not a number" in one that always is."""
    told = np.flatnonzero(~np.isnan(values))
    bad = np.isinf(values)
    if not len(told):
        bad[:] = True
    elif len(told) > _USUALLY * (told[-1] - told[0] + 1):
        bad[told[0] :] |= np.isnan(values[told[0] :])
    every = max(1, -(-len(steps) // max(1, columns)))
    starts = np.arange(0, len(steps), every)
    if not len(starts):
        empty = np.empty(0)
        return Line(np.empty(0, np.int64), empty, empty, empty, np.empty(0, np.bool_))
    finite = np.isfinite(values)
    numbers = np.where(finite, values, np.nan)
    count = np.add.reduceat(finite.astype(np.int64), starts)
    total = np.add.reduceat(np.where(finite, values, 0.0), starts)
    with np.errstate(all="ignore"):
        mean = np.where(count > 0, total / count, np.nan)
    low, high = np.fmin.reduceat(numbers, starts), np.fmax.reduceat(numbers, starts)
    return Line(steps[starts], low, mean, high, np.logical_or.reduceat(bad, starts))


def line_of_layer(window: Window) -> Line:
    """The one layer of a window of a quantity."""
    low, mean, high = (part[:, 0].astype(np.float64) for part in (window.minimum, window.mean, window.maximum))
    return Line(window.steps, low, mean, high, window.nonfinite[:, 0] > 0)
