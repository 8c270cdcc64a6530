"""Is a series really going somewhere? Tests that independent noise and random walks do not fool."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MINIMUM = 20  # fewer samples say too little, whatever they do
LIMIT = 3.0  # standard errors
UNIT_ROOT_LIMIT = -5.0  # Dickey–Fuller statistic below which residuals surely return to the trend
BLOCKS = 12
FLAT = 1e-12  # relative size of rounding noise


@dataclass(frozen=True, slots=True)
class Trend:
    """Of every column: slope per sample, its standard error, its direction (−1, 0, 1) when that is certain."""

    slope: Floats
    error: Floats
    direction: NDArray[np.int8]
    stationary: NDArray[np.bool_]  # the residuals return to the trend; otherwise a random walk cannot be excluded

    @property
    def score(self) -> Floats:
        """Slope in standard errors, squeezed to −1 … 1; the sign of the slope, 0.5 in size at 1.5 errors."""
        with np.errstate(divide="ignore", invalid="ignore"):
            size = np.abs(self.slope) / self.error
        size = np.where(self.error > 0, size, np.where(self.slope != 0, np.inf, 0.0))
        size = np.where(self.direction != 0, np.maximum(size, LIMIT), np.minimum(size, LIMIT))
        size = np.minimum(size, 1e9)  # an exact line has no error
        return np.sign(self.slope) * size / (size + LIMIT / 2)


def trend_test(series: Floats) -> Trend:
    """Linear trend of every column of a (samples × series) array without gaps.

    If the residuals return to the line (Dickey–Fuller), the slope is judged against their spread, widened for
    autocorrelation. Otherwise the series may be a random walk, and the mean step is judged against the spread of the
    steps. A series whose block means all go one way has a trend as well: a walk does that once in 500 times.
    """
    count, columns = int(series.shape[0]), int(series.shape[1])
    if count < 3:
        nothing = np.full(columns, np.nan)
        return Trend(nothing, nothing, np.zeros(columns, np.int8), np.zeros(columns, bool))
    slope, residual = detrend(series)
    spread = np.sqrt(np.square(residual).sum(axis=0) / (count - 2))
    exact = spread <= FLAT * np.abs(series).max(axis=0)
    leverage = float(np.sqrt(count * (count * count - 1.0) / 12))
    correlation, statistic = _unit_root(residual)
    stationary = exact | (statistic < UNIT_ROOT_LIMIT)
    correlation = np.clip(correlation + 4 / count, 0, 0.97)  # least squares understates it
    level_error: Floats = spread / leverage * np.sqrt((1 + correlation) / (1 - correlation))
    steps = np.diff(series, axis=0)
    mean_step = steps.mean(axis=0)
    step_residual = steps - mean_step
    variance = np.square(step_residual).mean(axis=0)
    echo = (step_residual[1:] * step_residual[:-1]).mean(axis=0) / np.where(variance > 0, variance, 1)
    echo = np.clip(echo, 0, 0.97)
    walk_error: Floats = np.sqrt(variance / (count - 1) * (1 + echo) / (1 - echo))
    slope = np.where(stationary, slope, mean_step)
    error = np.where(exact, 0.0, np.where(stationary, level_error, walk_error))
    certain: NDArray[np.bool_] = (np.abs(slope) > LIMIT * error) & (count >= MINIMUM) | (exact & (count >= 3))
    certain &= np.abs(slope) * count > FLAT * np.abs(series).max(axis=0)
    one_way = _monotone_blocks(series)
    direction = np.where(certain, np.sign(slope), one_way).astype(np.int8)
    return Trend(np.where(certain | (one_way == 0), slope, mean_step), error, direction, stationary)


def detrend(series: Floats) -> tuple[Floats, Floats]:
    """Least-squares slope of every column and what is left of it."""
    index = np.arange(len(series), dtype=np.float64)
    index -= index.mean()
    centred = series - series.mean(axis=0)
    slope = index @ centred / max(1.0, float(index @ index))
    return slope, centred - index[:, None] * slope


def _unit_root(residual: Floats) -> tuple[Floats, Floats]:
    """Lag-one correlation, and the Dickey–Fuller statistic of Δe against e."""
    before, after = residual[:-1], residual[1:]
    power = np.square(before).sum(axis=0)
    safe = np.where(power > 0, power, 1)
    correlation = (before * after).sum(axis=0) / safe
    left = after - correlation * before
    error = np.sqrt(np.square(left).sum(axis=0) / max(1, len(left) - 3) / safe)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = (correlation - 1) / error
    return correlation, np.where(power > 0, statistic, -np.inf)


def _monotone_blocks(series: Floats) -> NDArray[np.int8]:
    count = len(series)
    if count < 2 * BLOCKS:
        return np.zeros(int(series.shape[1]), np.int8)
    size = count // BLOCKS
    recent = series[count - size * BLOCKS :]
    changes = np.diff(recent.reshape(BLOCKS, size, -1).mean(axis=1), axis=0)
    return (changes > 0).all(axis=0).astype(np.int8) - (changes < 0).all(axis=0).astype(np.int8)
