"""Does the loss go down, and when will it be done?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undertow.analyze.oscillation import oscillation
from undertow.analyze.series import Floats
from undertow.analyze.trend import trend_test
from undertow.schema.seeds.dynamics import ConvergenceTrend

STABLE_CHANGE = 0.05  # of the loss, over the window: less is no change
INTERVAL = 2.576  # standard errors of a 99 % interval
FIT_POINTS = 64
GOOD_FIT = 0.9  # share of the variance explained
CLOSE = np.log(100)  # converged: 99 % of the way to the floor


@dataclass(frozen=True, slots=True)
class LossTrend:
    """Of the newest window of a loss. `score` is 1 when it surely falls, −1 when it surely rises."""

    trend: ConvergenceTrend
    score: float | None
    slope: float | None
    interval: tuple[float, float] | None
    reason: str = ""


def loss_trend(loss: Floats, window: int) -> LossTrend:
    if len(loss) < window:
        missing = f"{window - len(loss)} more loss values are needed"
        return LossTrend(ConvergenceTrend.UNKNOWN, None, None, None, missing)
    recent = loss[-window:]
    if not np.isfinite(recent).all():
        return LossTrend(ConvergenceTrend.DIVERGING, -1.0, None, None, "the loss is not finite")
    column = recent[:, None]
    trend = trend_test(column)
    slope, error, direction = float(trend.slope[0]), float(trend.error[0]), int(trend.direction[0])
    interval = (slope - INTERVAL * error, slope + INTERVAL * error)
    score = -float(trend.score[0])
    if bool(oscillation(column).verdict[0]):
        return LossTrend(ConvergenceTrend.OSCILLATING, score, slope, interval)
    if direction:
        kind = ConvergenceTrend.CONVERGING if direction < 0 else ConvergenceTrend.DIVERGING
        return LossTrend(kind, score, slope, interval)
    change = max(map(abs, interval)) * window
    kind = ConvergenceTrend.STABLE if change <= STABLE_CHANGE * scale_of(loss) else ConvergenceTrend.UNKNOWN
    return LossTrend(kind, score, slope, interval, "" if kind == "Stable" else "no trend stands out from the noise")


def scale_of(loss: Floats) -> float:
    """What a change of the loss is compared with: its level, or a twentieth of its range where that is near zero."""
    finite = loss[np.isfinite(loss)]
    return max(abs(float(finite[-100:].mean())), 0.05 * float(np.ptp(finite))) if len(finite) else 0.0


def steps_to_convergence(loss: Floats) -> tuple[int, tuple[int, int]] | str:
    """Steps until 99 % of the way to the floor of a fitted exponential, with an interval; or why there is none.

    The loss is averaged to at most 64 points; for each of many time constants the floor and the height are fitted by
    least squares, and those that fit nearly as well as the best one give the interval.
    """
    if len(loss) < FIT_POINTS or not np.isfinite(loss).all():
        return f"a fit needs {FIT_POINTS} finite loss values"
    size = len(loss) // FIT_POINTS
    points = loss[len(loss) - size * FIT_POINTS :].reshape(FIT_POINTS, size).mean(axis=1)
    times = np.arange(FIT_POINTS) * size + (size - 1) / 2
    constants = np.geomspace(2 * size, 20 * len(loss), 160)
    decay = np.exp(-times[:, None] / constants)
    apart = decay - decay.mean(axis=0)
    centred = points - points.mean()
    power = np.square(apart).sum(axis=0)
    height = centred @ apart / np.where(power > 0, power, 1)
    left = np.square(centred[:, None] - height * apart).sum(axis=0)
    best = int(np.argmin(left))
    total = float(centred @ centred)
    if total <= 0 or 1 - left[best] / total < GOOD_FIT or height[best] <= 0:
        return "an exponential does not describe the loss"
    alike = np.flatnonzero((left <= left[best] * (1 + 6.63 / (FIT_POINTS - 3))) & (height > 0))
    if alike[-1] == len(constants) - 1 or constants[alike[-1]] > len(loss):
        return "the loss has not bent yet: its floor cannot be told"
    ends = (best, max(0, alike[0] - 1), alike[-1] + 1)  # the grid is coarse: one more on each side
    remaining = [max(0, round(float(constants[at] * CLOSE - len(loss)))) for at in ends]
    return remaining[0], (remaining[1], remaining[2])
