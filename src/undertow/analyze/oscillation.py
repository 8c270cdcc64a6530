"""Does a series swing to and fro faster than noise would?"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.trend import Floats, detrend

MINIMUM = 14  # the shortest series whose perfect alternation is rarer than 1 % in noise
LIMIT = 2.81  # standard deviations above the turning points of independent noise: 0.25 %
CORRELATION_LIMIT = -0.3
AMPLITUDE_FLOOR = 0.01  # of the level
TURNING = -0.3  # mean cosine of successive gradients; of the healthy trainings' 453 layers none is below −0.28
TURNING_ERRORS = 3.0


@dataclass(frozen=True, slots=True)
class Oscillation:
    """`z` is the excess of turning points over independent noise in standard deviations (NaN below 3 samples)."""

    turning_points: NDArray[np.int64]
    z: Floats
    correlation: Floats  # with the sample before, after the trend is taken off
    amplitude: Floats  # spread around the trend over the level
    significant: NDArray[np.bool_]


def turning_points(series: Floats) -> NDArray[np.int64]:
    """Places where the change of every column reverses its sign. NaN turns nowhere."""
    steps = np.diff(series, axis=0)
    return (steps[1:] * steps[:-1] < 0).sum(axis=0)


def turning_point_z(turns: NDArray[np.int64], count: int | NDArray[np.int64]) -> Floats:
    """How far the number of turning points is from that of independent noise."""
    samples = np.maximum(3, count)
    z = (turns - 2 * (samples - 2) / 3) / np.sqrt((16 * samples - 29) / 90)
    return np.where(np.asarray(count) >= 3, z, np.nan)


def oscillation(series: Floats) -> Oscillation:
    """Test every column of a (samples × series) array without gaps.

    Significant are more turning points than noise has, negative correlation of successive samples, and swings that
    are not negligible beside the level. Fewer than 14 samples cannot be told from noise.
    """
    count = len(series)
    turns = turning_points(series)
    z = turning_point_z(turns, count)
    _, residual = detrend(series)
    power = np.square(residual).sum(axis=0)
    safe = np.where(power > 0, power, 1)
    correlation = (residual[1:] * residual[:-1]).sum(axis=0) / safe
    level = np.abs(series).mean(axis=0)
    amplitude = np.sqrt(power / max(1, count)) / np.where(level > 0, level, 1)
    beyond = (z > LIMIT) & (correlation < CORRELATION_LIMIT) & (amplitude > AMPLITUDE_FLOOR)
    return Oscillation(turns, z, correlation, amplitude, beyond & (count >= MINIMUM))


def turning_directions(cosines: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Mean cosine of successive gradients per column (NaN below 14), and whether they surely turn back each time."""
    known = np.isfinite(cosines)
    count = known.sum(axis=0)
    some = np.maximum(1, count)
    mean = np.where(known, cosines, 0).sum(axis=0) / some
    spread = np.sqrt(np.where(known, np.square(cosines - mean), 0).sum(axis=0) / some)
    enough = count >= MINIMUM
    turning = enough & (mean < TURNING) & (mean < -TURNING_ERRORS * spread / np.sqrt(some))
    return np.where(enough, mean, np.nan), turning
