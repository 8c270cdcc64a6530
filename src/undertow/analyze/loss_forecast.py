"""How long until the loss is near its floor: the better of two laws of decay, with an interval."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from undertow.analyze.series import Floats

POINTS = 64
GRID = 160
GOOD_FIT = 0.9  # share of the variance explained
ALIKE = 6.63  # of chi² with one degree of freedom: a 99 % interval
CLOSE = math.log(100)  # converged: 99 % of the way from the first loss to the floor
FARTHEST = CLOSE  # lengths of what was seen: an exponential whose time constant is all of it
STEEPEST = 3.0  # exponent of a power law
NO_FIT = "neither an exponential nor a power law describes the loss"


@dataclass(frozen=True, slots=True)
class Forecast:
    law: Literal["exponential", "power"]
    steps: int
    interval: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fits:
    """One law, tried with many shapes, the quickest first."""

    reach: Floats  # steps from the first loss until it is close to the floor
    residual: Floats  # sum of squares; infinite where the loss would rise

    def interval(self, limit: float) -> tuple[float, float] | None:
        """Reach of all shapes that fit within the limit, and of one more on each side: the grid is coarse."""
        alike = np.flatnonzero(self.residual <= limit)
        if not len(alike):
            return None
        last = alike[-1] + 1
        return float(self.reach[max(0, alike[0] - 1)]), float(self.reach[last]) if last < len(self.reach) else np.inf


def forecast(loss: Floats) -> Forecast | str:
    """Steps until 99 % of the way to the floor, or why that cannot be told.

    floor + height · exp(−t/τ) and floor + height · (t + 1)^−a have three parameters each, so the smaller residual
    decides. Every shape of either law that fits nearly as well as the best one widens the interval.
    """
    if len(loss) < POINTS or not np.isfinite(loss).all():
        return f"a fit needs {POINTS} finite loss values"
    size = len(loss) // POINTS
    first = len(loss) - size * POINTS
    points = loss[first:].reshape(POINTS, size).mean(axis=1)
    total = float(np.square(points - points.mean()).sum())
    exponential, power = _exponentials(points, first, size), _powers(points, first, size)
    law, better = (
        ("power", power) if power.residual.min() < exponential.residual.min() else ("exponential", exponential)
    )
    best = int(np.argmin(better.residual))
    if total <= 0 or not better.residual[best] <= (1 - GOOD_FIT) * total:
        return NO_FIT
    limit = float(better.residual[best]) * (1 + ALIKE / (POINTS - 3))
    ends = [ends for fits in (exponential, power) if (ends := fits.interval(limit)) is not None]
    nearest, farthest = min(low for low, _ in ends), max(high for _, high in ends)
    if farthest > FARTHEST * len(loss):
        return "the loss has not bent enough yet: its floor cannot be told"
    steps, low, high = (max(0, round(at - len(loss))) for at in (float(better.reach[best]), nearest, farthest))
    return Forecast(law, steps, (low, high))


def _exponentials(points: Floats, first: int, size: int) -> Fits:
    times = first + np.arange(POINTS) * size + (size - 1) / 2
    constants = np.geomspace(2 * size, 20 * (first + size * POINTS), GRID)
    return Fits(constants * CLOSE, _residuals(points, np.exp(-times[:, None] / constants)))


def _powers(points: Floats, first: int, size: int) -> Fits:
    """They bend so sharply at the start that the middle of a block does not stand for it: blocks are averaged."""
    reach: Floats = np.geomspace(math.exp(CLOSE / STEEPEST), 20 * CLOSE * (first + size * POINTS), GRID)
    exponents = CLOSE / np.log(reach)
    logs = np.log(np.arange(first + 1, first + size * POINTS + 1))
    shapes = [np.exp(-exponent * logs).reshape(POINTS, size).mean(axis=1) for exponent in exponents]
    return Fits(reach, _residuals(points, np.stack(shapes, axis=1)))


def _residuals(points: Floats, shapes: Floats) -> Floats:
    """Least squares of floor and height for every column; infinite where the loss would rise."""
    apart = shapes - shapes.mean(axis=0)
    centred = points - points.mean()
    power = np.square(apart).sum(axis=0)
    height = centred @ apart / np.where(power > 0, power, 1)
    left = np.square(centred[:, None] - height * apart).sum(axis=0)
    return np.where(height > 0, left, np.inf)
