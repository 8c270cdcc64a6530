"""What one layer's norms say on their own: moments, order, smoothness, trend. All layers at once."""

from dataclasses import dataclass, fields, replace

import numpy as np

from undertow.analyze.oscillation import oscillation, turning_directions, turning_points
from undertow.analyze.series import Counts, Flags, Floats, LayerSeries, column_median, sorted_quantile
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
    whole = (finite_count == count) & (count > 0)  # nothing non-finite inside
    values = np.where(finite, samples, np.nan)
    unit = _unit(values)
    values /= unit
    ordered = np.sort(values, axis=0)
    steps = np.diff(values, axis=0)
    recent = values[-window:]
    full = (count >= window) & np.isfinite(recent).all(axis=0)
    mean, std, skewness, kurtosis = _moments(values, finite, finite_count)
    swing, oscillating = _recent_oscillation(recent, count)
    some, top = np.maximum(1, count), recent.max(axis=0, initial=0.0)
    along = {
        "consistency": _consistency(values),
        "flow_rate": np.nansum(np.abs(steps), axis=0) / some * unit,
        "smoothness": _smoothness(steps, count, unit),
        "slope": _slope(values, finite, count) * unit,
        "turn_share": turning_points(values) * (count >= 4) / some,
    }
    return LayerNumbers(
        count=count,
        finite_count=finite_count,
        mean=mean * unit,
        std=std * unit,
        skewness=skewness,
        kurtosis=kurtosis,
        median=sorted_quantile(ordered, finite_count, 0.5) * unit,
        percentile_5=sorted_quantile(ordered, finite_count, 0.05) * unit,
        percentile_95=sorted_quantile(ordered, finite_count, 0.95) * unit,
        largest=sorted_quantile(ordered, finite_count, 1.0) * unit,
        **{name: np.where(whole, numbers, np.nan) for name, numbers in along.items()},
        oscillation_z=swing,
        oscillating=oscillating,
        direction_cosine=np.full(len(count), np.nan),
        stability=_stability(recent),
        convergence=_norm_trend(recent, full),
        zero_share=(values == 0).sum(axis=0) / np.maximum(1, finite_count),
        constant=full & (top > 0) & (top - recent.min(axis=0, initial=np.inf) <= 1e-6 * top),
    )


def _unit(values: Floats) -> Floats:
    """1, or the largest norm of layers whose fourth powers would leave the range of numbers."""
    top = np.where(np.isnan(values), 0, values).max(axis=0, initial=0.0)
    return np.where((top > 1e60) | ((top > 0) & (top < 1e-60)), top, 1.0)


def _moments(values: Floats, finite: Flags, count: Counts) -> tuple[Floats, Floats, Floats, Floats]:
    """Mean, standard deviation, skewness and excess kurtosis; NaN without a finite sample."""
    some = np.where(count > 0, count, np.nan)
    mean = np.where(finite, values, 0).sum(axis=0) / some
    apart = np.where(finite, values - mean, 0)
    square = apart * apart
    std = np.sqrt(square.sum(axis=0) / some)
    std = np.where(std <= ROUNDING * np.abs(mean), 0, std)
    unit = np.where(std > 0, std, 1)
    third = np.where(std > 0, (square * apart).sum(axis=0) / unit**3, 0) / some
    fourth = np.where(std > 0, np.square(square).sum(axis=0) / unit**4 - 3 * count, 0) / some
    return mean, std, third, fourth


def _consistency(values: Floats) -> Floats:
    """1 / (1 + median |ln ratio of neighbours|); two zeros are no change, a pair with one zero is left out."""
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.abs(np.diff(np.log(values), axis=0))
    change[(values[1:] == 0) & (values[:-1] == 0)] = 0
    return 1 / (1 + column_median(np.where(np.isfinite(change), change, np.nan)))


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


def _recent_oscillation(recent: Floats, count: Counts) -> tuple[Floats, Flags]:
    """Layers with a gap in the window are left without an answer; short histories use what they have."""
    z = np.full(int(recent.shape[1]), np.nan)
    significant = np.zeros(int(recent.shape[1]), bool)
    lengths = np.minimum(count, len(recent))
    for length in np.unique(lengths[lengths >= 3]):
        part = recent[len(recent) - length :]
        chosen = np.flatnonzero((lengths == length) & np.isfinite(part).all(axis=0))
        if len(chosen):
            result = oscillation(part[:, chosen])
            z[chosen], significant[chosen] = result.z, result.significant
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
