"""Moments, entropy and outliers of plain arrays, in float64; non-finite values counted and left out."""

from math import erfc, sqrt

import numpy as np
from numpy.typing import NDArray

from undertow.schema.seeds.arrays import Floats
from undertow.schema.seeds.weight_records import WeightStatistics

BINS = 64
OUTLIER = 3.0
ROUNDING = 1e-13


def array_statistics(values: Floats) -> WeightStatistics:
    """Of the finite elements, scaled by the largest so that neither squares nor fourth powers leave the range."""
    finite = values[np.isfinite(values)]
    lost = int(values.size - finite.size)
    if not finite.size:
        return WeightStatistics.of_nothing(lost)
    largest = float(np.abs(finite).max())
    unit = largest if largest > 0 else 1.0
    scaled = finite / unit
    mean = float(scaled.mean())
    apart = scaled - mean
    square = apart * apart
    variance = float(square.mean())
    std = sqrt(variance) if sqrt(variance) > ROUNDING * abs(mean) else 0.0
    return WeightStatistics(
        mean=mean * unit,
        std_dev=std * unit,
        skewness=float((square * apart).mean()) / std**3 if std > 0 and finite.size >= 3 else 0.0,
        kurtosis=float(np.square(square).mean()) / std**4 - 3 if std > 0 and finite.size >= 4 else 0.0,
        entropy=histogram_entropy(scaled) if std > 0 else 0.0,
        min=float(finite.min()),
        max=float(finite.max()),
        zero_fraction=float((finite == 0).mean()),
        count=int(finite.size),
        nonfinite_count=lost,
    )


def histogram_entropy(values: Floats) -> float:
    """Shannon entropy in bits of 64 equal bins over the range; at most 6."""
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return 0.0
    place = np.minimum(BINS - 1, ((values - low) / (high - low) * BINS).astype(np.int64))
    return entropy_bits(np.bincount(place, minlength=BINS))


def entropy_bits(histogram: NDArray[np.int64]) -> float:
    """Shannon's; 6 for 64 equally full bins, 0 when all elements are equal."""
    shares = histogram[histogram > 0] / histogram.sum()
    return max(0.0, -float((shares * np.log2(shares)).sum()))


def scaled_norm(values: Floats) -> float:
    """L2 norm that neither over- nor underflows; NaN or infinite as soon as one element is."""
    largest = float(np.abs(values).max()) if values.size else 0.0
    if largest == 0 or not np.isfinite(largest):
        return largest
    return largest * float(np.sqrt(np.square(values / largest).sum()))


def pooled(parts: list[WeightStatistics], arrays: list[Floats]) -> WeightStatistics:
    """Of all elements together: moments merged by number, the entropy from one common histogram."""
    total = WeightStatistics()
    for part in parts:
        total.accumulate(part)
    low, high = total.min, total.max
    if not total.count or low is None or high is None:
        return WeightStatistics.of_nothing(total.nonfinite_count)
    total.entropy = 0.0
    if high > low:
        counts = np.zeros(BINS, np.int64)
        width = high / BINS - low / BINS
        for values in arrays:
            place = (values[np.isfinite(values)] / width - low / width).astype(np.int64)
            counts += np.bincount(np.clip(place, 0, BINS - 1), minlength=BINS)
        total.entropy = entropy_bits(counts)
    return total


def outliers(values: Floats, statistics: WeightStatistics, most: int) -> tuple[list[tuple[int, float]], int]:
    """(flat index, |z|) of the `most` farthest elements beyond three standard deviations, and how many there are."""
    mean, std = statistics.mean, statistics.std_dev
    if mean is None or not std:
        return [], 0
    with np.errstate(invalid="ignore"):
        z = np.abs(values / std - mean / std)
    z[~np.isfinite(values)] = 0
    beyond: NDArray[np.intp] = np.flatnonzero(z > OUTLIER)
    order = beyond[np.argsort(-z[beyond], kind="stable")][:most]
    return [(int(index), float(z[index])) for index in order], len(beyond)


def expected_outliers(count: int) -> float:
    """How many of `count` Gaussian values lie beyond three standard deviations."""
    return count * erfc(OUTLIER / sqrt(2))
