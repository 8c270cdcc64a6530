"""What one layer's norms say on their own: moments, order, smoothness, trend. All layers at once."""

from dataclasses import dataclass, fields, replace

import numpy as np

from undertow.analyze.oscillation import oscillation, turning_directions, turning_points
from undertow.analyze.series import Counts, Flags, Floats, LayerSeries
from undertow.analyze.trend import detrend, trend_test

ROUNDING = 1e-13  # a spread below this share of the level is rounding


@dataclass(frozen=True, slots=True)
class LayerNumbers:
    """One entry per layer; NaN where the samples cannot support the number. Statistics are over finite samples."""

    count: Counts
    finite_count: Counts
    mean: Floats
    std: Floats
    median: Floats
    percentile_5: Floats
    percentile_95: Floats
    skewness: Floats
    kurtosis: Floats
    largest: Floats
    consistency: Floats
    flow_rate: Floats
    smoothness: Floats
    slope: Floats
    turn_share: Floats
    oscillation_z: Floats  # of the newest `window` samples, as all below
    oscillating: Flags
    direction_cosine: Floats  # mean of successive gradients; NaN where directions are not known
    stability: Floats
    convergence: Floats  # certainty that the norm falls (1) or rises (−1); NaN until the window is full
    zero_share: Floats
    constant: Flags

    @property
    def nonfinite_count(self) -> Counts:
        return self.count - self.finite_count


def layer_numbers(series: LayerSeries, window: int = 100) -> LayerNumbers:
    """Measure all layers, a cache-sized block of them at a time."""
    blocks = [
        _measure(series.samples[:, block], series.counts[block], max(3, window)) for block in series.blocks()
    ] or [_measure(np.empty((0, 0)), np.empty(0, np.int64), window)]
    return LayerNumbers(**{
        field.name: np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(LayerNumbers)
    })  # fmt: skip


def with_directions(numbers: LayerNumbers, cosines: Floats | None, window: int = 100) -> LayerNumbers:
    """The same, with what the directions of successive gradients say: turning back on itself is oscillation, too."""
    if cosines is None:
        return numbers
    mean, turning = turning_directions(cosines[-window:])
    return replace(numbers, direction_cosine=mean, oscillating=numbers.oscillating | turning)


def _measure(samples: Floats, count: Counts, window: int) -> LayerNumbers:
    finite = np.isfinite(samples)
    finite_count = finite.sum(axis=0)
    whole = finite_count == count  # nothing non-finite inside
    values = np.where(finite, samples, np.nan)
    unit = _unit(values)
    values /= unit
    moments = _moments(values, finite, finite_count)
    ordered = np.sort(values, axis=0)
    steps = np.diff(values, axis=0)
    recent = values[-window:]
    full = (count >= min(window, len(values))) & np.isfinite(recent).all(axis=0)
    swing = _recent_oscillation(recent, full, count)
    rate = np.nansum(np.abs(steps), axis=0) / np.maximum(1, count)
    return LayerNumbers(
        count=count,
        finite_count=finite_count,
        mean=moments["mean"] * unit,
        std=moments["std"] * unit,
        skewness=moments["skewness"],
        kurtosis=moments["kurtosis"],
        median=_quantile(ordered, finite_count, 0.5) * unit,
        percentile_5=_quantile(ordered, finite_count, 0.05) * unit,
        percentile_95=_quantile(ordered, finite_count, 0.95) * unit,
        largest=_quantile(ordered, finite_count, 1.0) * unit,
        consistency=np.where(whole, _consistency(values), np.nan),
        flow_rate=np.where(whole & (count > 0), rate * unit, np.nan),
        smoothness=np.where(whole & (count > 0), _smoothness(steps, count, unit), np.nan),
        slope=np.where(whole & (count > 0), _slope(values, finite, count) * unit, np.nan),
        turn_share=np.where(whole & (count > 0), turning_points(values) * (count >= 4) / np.maximum(1, count), np.nan),
        oscillation_z=swing[0],
        oscillating=swing[1],
        direction_cosine=np.full(len(count), np.nan),
        stability=_stability(recent),
        convergence=_norm_trend(recent, full & (count >= window)),
        zero_share=(values == 0).sum(axis=0) / np.maximum(1, finite_count),
        constant=full & (count >= window) & _constant(recent),
    )


def _unit(values: Floats) -> Floats:
    """1, or the largest norm of layers whose fourth powers would leave the range of numbers."""
    top = np.where(np.isnan(values), 0, values).max(axis=0, initial=0.0)
    return np.where((top > 1e60) | ((top > 0) & (top < 1e-60)), top, 1.0)


def _moments(values: Floats, finite: Flags, count: Counts) -> dict[str, Floats]:
    some = np.maximum(1, count)
    mean = np.where(count > 0, np.where(finite, values, 0).sum(axis=0) / some, np.nan)
    apart = np.where(finite, values - mean, 0)
    square = apart * apart
    variance = square.sum(axis=0) / some
    std = np.where(np.sqrt(variance) <= ROUNDING * np.abs(mean), 0, np.sqrt(variance))
    unit = np.where(std > 0, std, 1)
    third = (square * apart).sum(axis=0) / some / unit**3
    fourth = np.square(square).sum(axis=0) / some / unit**4 - 3
    known = count > 0
    return {
        "mean": mean,
        "std": np.where(known, std, np.nan),
        "skewness": np.where(known, np.where(std > 0, third, 0), np.nan),
        "kurtosis": np.where(known, np.where(std > 0, fourth, 0), np.nan),
    }


def _quantile(ordered: Floats, count: Counts, share: float) -> Floats:
    """Linear interpolation between order statistics; NaNs are sorted to the end."""
    if not len(ordered):
        return np.full(len(count), np.nan)
    place: Floats = share * np.maximum(0, count - 1)
    low: Counts = np.floor(place).astype(np.int64)
    high: Counts = np.minimum(low + 1, np.maximum(0, count - 1))
    below: Floats = np.take_along_axis(ordered, low[None], axis=0)[0]
    above: Floats = np.take_along_axis(ordered, high[None], axis=0)[0]
    with np.errstate(invalid="ignore"):
        between: Floats = np.where(high > low, below + (place - low) * (above - below), below)
    return between


def _consistency(values: Floats) -> Floats:
    """1 / (1 + median |ln ratio of neighbours|); two zeros are no change, a pair with one zero is left out."""
    if len(values) < 2:
        return np.full(int(values.shape[1]), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.abs(np.diff(np.log(values), axis=0))
    change[(values[1:] == 0) & (values[:-1] == 0)] = 0
    change[~np.isfinite(change)] = np.nan
    usable = (~np.isnan(change)).sum(axis=0)
    return 1 / (1 + np.where(usable > 0, _quantile(np.sort(change, axis=0), usable, 0.5), np.nan))


def _smoothness(steps: Floats, count: Counts, unit: Floats) -> Floats:
    with np.errstate(over="ignore"):  # beyond all bounds is not smooth, and the result says so
        bends = np.nansum(np.abs(np.diff(steps, axis=0)), axis=0) / np.maximum(1, count - 2) * unit
    return np.where(count < 3, 1.0, np.minimum(1.0, 1 / (1 + bends)))


def _slope(values: Floats, finite: Flags, count: Counts) -> Floats:
    """Least squares against 0, 1, 2 … within each layer; 0 below three samples."""
    rows = len(values)
    index = np.arange(rows, dtype=np.float64)[:, None] - (rows - 1) + (count - 1) / 2  # centred per layer
    above = (index * np.where(finite, values, 0)).sum(axis=0)
    return np.where(count < 3, 0.0, above / np.maximum(1.0, count * (count**2 - 1.0) / 12))


def _recent_oscillation(recent: Floats, full: Flags, count: Counts) -> tuple[Floats, Flags]:
    """Layers with a gap in the window are left without an answer; short histories use what they have."""
    z = np.full(int(recent.shape[1]), np.nan)
    significant = np.zeros(int(recent.shape[1]), bool)
    for length in np.unique(np.minimum(count, len(recent))):
        chosen = np.flatnonzero(np.minimum(count, len(recent)) == length)
        part = recent[len(recent) - length :, chosen]
        whole = np.isfinite(part).all(axis=0)
        if length >= 3 and whole.any():
            result = oscillation(part[:, whole])
            z[chosen[whole]], significant[chosen[whole]] = result.z, result.significant
    return z, significant


def _norm_trend(recent: Floats, full: Flags) -> Floats:
    score = np.full(int(recent.shape[1]), np.nan)
    usable = full & (recent > 0).all(axis=0)
    if usable.any():
        score[usable] = -trend_test(np.log(recent[:, usable])).score
    return score


def _stability(recent: Floats) -> Floats:
    """1 / (1 + relative spread around the trend), the trend being a line in the norm or in its logarithm.

    NaN for fewer than three finite samples and for layers that are zero throughout.
    """
    known = np.isfinite(recent)
    count = known.sum(axis=0)
    mean = np.where(known, recent, 0).sum(axis=0) / np.maximum(1, count)
    spread = _gapped_spread(recent, known, count) / np.where(mean > 0, mean, 1)
    positive = (count > 0) & (np.where(known, recent, 1) > 0).all(axis=0)
    relative = _gapped_spread(np.log(np.where(known & (recent > 0), recent, 1.0)), known, count)
    best = np.where(positive, np.fmin(spread, relative), spread)
    return np.where((count >= 3) & (mean > 0), 1 / (1 + best), np.nan)


def _gapped_spread(values: Floats, known: Flags, count: Counts) -> Floats:
    """Root mean square distance from the least-squares line, with gaps left out."""
    if known.all():
        return np.sqrt(np.square(detrend(values)[1]).mean(axis=0)) if len(values) else np.zeros(int(values.shape[1]))
    some = np.maximum(1, count)
    clean = np.where(known & np.isfinite(values), values, 0)
    index = np.where(known, np.arange(len(values), dtype=np.float64)[:, None], 0)
    index_apart = np.where(known, index - index.sum(axis=0) / some, 0)
    apart = np.where(known, clean - clean.sum(axis=0) / some, 0)
    slope = (index_apart * apart).sum(axis=0) / np.maximum(1e-300, np.square(index_apart).sum(axis=0))
    return np.sqrt(np.square(apart - slope * index_apart).sum(axis=0) / some)


def _constant(recent: Floats) -> Flags:
    if not len(recent):
        return np.zeros(int(recent.shape[1]), bool)
    top = recent.max(axis=0)
    return (top > 0) & (top - recent.min(axis=0) <= 1e-6 * top)
