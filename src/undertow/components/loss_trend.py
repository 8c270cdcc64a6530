"""Does the loss go down?"""

from dataclasses import dataclass

import numpy as np

from undertow.analyze.oscillation import oscillation
from undertow.analyze.series import Floats
from undertow.analyze.trend import trend_test
from undertow.schema.seeds.dynamics import ConvergenceTrend

STABLE_CHANGE = 0.05  # of the loss, over the window: less is no change
INTERVAL = 2.576  # standard errors of a 99 % interval


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
    if bool(oscillation(column).significant[0]):
        return LossTrend(ConvergenceTrend.OSCILLATING, score, slope, interval)
    if direction and (direction < 0) == (interval[1] < 0) and (direction > 0) == (interval[0] > 0):
        kind = ConvergenceTrend.CONVERGING if direction < 0 else ConvergenceTrend.DIVERGING
        return LossTrend(kind, score, slope, interval)
    change = max(map(abs, interval)) * window
    kind = ConvergenceTrend.STABLE if change <= STABLE_CHANGE * scale_of(loss) else ConvergenceTrend.UNKNOWN
    return LossTrend(kind, score, slope, interval, "" if kind == "Stable" else "no trend stands out from the noise")


def scale_of(loss: Floats) -> float:
    """What a change of the loss is compared with: its level, or a twentieth of its range where that is near zero."""
    finite = loss[np.isfinite(loss)]
    return max(abs(float(finite[-100:].mean())), 0.05 * float(np.ptp(finite))) if len(finite) else 0.0
