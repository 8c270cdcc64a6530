"""How the elements of one tensor are distributed: two passes over memory in blocks, in float64, nothing kept but sums.

The first pass finds range and mean; the second takes powers of the deviations from that mean, relative to the largest
of them, so that neither tiny nor huge weights leave the range of float64.
"""

from dataclasses import dataclass
from math import erfc, hypot, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.array_statistics import BINS, entropy_bits
from undertow.checkpoints.elements import Elements
from undertow.schema.checkpoints import Extreme, Moments, Outliers

Floats = NDArray[np.float64]

# Deviations are counted by exponent and the first three bits of the mantissa, as float32 has them.
_SHIFT = 20
_BUCKETS = 1 << (32 - _SHIFT - 1)
LARGEST_KEPT = 5
OUTLIER_LIMIT = 5.0
_NORMAL_QUARTILE = 0.6744897501960817  # the median of |x| of a standard normal distribution


@dataclass(frozen=True, slots=True)
class Distribution:
    """`histogram`: 64 equal bins from minimum to maximum. Squares are of x / `reach`, summed by row and by column."""

    moments: Moments
    histogram: NDArray[np.int64]
    deviations: NDArray[np.int64]
    farthest: float  # the largest deviation from the mean
    largest: tuple[tuple[float, int, float], ...]  # (|deviation|, flat index, value), falling
    reach: float  # the largest absolute value
    row_squares: Floats
    column_squares: Floats


@np.errstate(invalid="ignore")  # some NaN patterns warn when they are widened; they are counted anyway
def measure(elements: Elements) -> Distribution:
    rows, columns = elements.matrix_shape
    nan, infinite, zeros, low, high, total = _range(elements)
    count = elements.raw.size
    finite = count - nan - infinite
    if finite == 0:
        nothing, moments = np.zeros(0, np.int64), Moments(count, nan, infinite, zeros)
        return Distribution(moments, nothing, nothing, 0.0, (), 0.0, np.zeros(rows), np.zeros(columns))
    mean = min(max(total / finite, low), high)
    sums = _Sums(elements, low, high, mean)
    for block in elements.blocks():
        sums.add(block.row, block.column, block.values, all_finite=finite == count)
    second, third, fourth = (sums.powers / finite).tolist()
    std = sqrt(second) * sums.farthest
    moments = Moments(
        count=count,
        nan_count=nan,
        infinite_count=infinite,
        zero_count=zeros,
        minimum=low,
        maximum=high,
        mean=mean,
        std=std,
        skewness=third / second**1.5 if second > 0 else 0.0,
        kurtosis=fourth / second**2 - 3.0 if second > 0 else 0.0,
        norm=sqrt(finite) * hypot(mean, std),
        entropy_bits=entropy_bits(sums.histogram),
    )
    largest = tuple(sorted(sums.largest, reverse=True))
    return Distribution(moments, sums.histogram, sums.deviations, sums.farthest, largest, sums.reach, sums.row_squares,
                        sums.column_squares)  # fmt: skip


def _range(elements: Elements) -> tuple[int, int, int, float, float, float]:
    nan = infinite = nonzero = 0
    low, high, total = np.inf, -np.inf, 0.0
    for block in elements.blocks():
        values = block.values
        nonzero += int(np.count_nonzero(values))  # NaN is not zero
        least, most = values.min(), values.max()
        if not (np.isfinite(least) and np.isfinite(most)):
            nan += int(np.isnan(values).sum())
            infinite += int(np.isinf(values).sum())
            values = values[np.isfinite(values)]
            if values.size == 0:
                continue
            least, most = values.min(), values.max()
        low, high = min(low, float(least)), max(high, float(most))
        total += float(values.sum(dtype=np.float64))
    return nan, infinite, elements.raw.size - nonzero, low, high, total


class _Sums:
    """What the second pass adds up."""

    def __init__(self, elements: Elements, low: float, high: float, mean: float) -> None:
        rows, columns = elements.matrix_shape
        self._columns = columns
        self._low, self._mean = low, mean
        self.farthest = max(high - mean, mean - low)
        self.reach = max(abs(low), abs(high))
        self._per_deviation = _inverse(self.farthest)
        self._per_value = _inverse(self.reach)
        self._per_bin = BINS * _inverse(high - low)
        self.powers = np.zeros(3)
        self.histogram = np.zeros(BINS, np.int64)
        self.deviations = np.zeros(_BUCKETS, np.int64)
        self.row_squares = np.zeros(rows)
        self.column_squares = np.zeros(columns)
        self.largest: list[tuple[float, int, float]] = []

    def add(self, row: int, column: int, values: NDArray[Any], *, all_finite: bool) -> None:
        block = values.astype(np.float64)
        if not all_finite:
            block[~np.isfinite(block)] = np.nan
        self._add_squares(row, column, block, all_finite)
        first = row * self._columns + column
        flat = block.reshape(-1)
        places = None
        if not all_finite:
            places = np.flatnonzero(~np.isnan(flat))
            flat = flat[places]
            if flat.size == 0:
                return
        deviation = flat - self._mean
        deviation *= self._per_deviation
        square = deviation * deviation
        self.powers += (square.sum(), np.dot(square, deviation), np.dot(square, square))
        size = np.abs(deviation, out=deviation)
        self._keep_largest(size, flat, first, places)
        bits = size.astype(np.float32).view(np.uint32)
        bits >>= np.uint32(_SHIFT)
        self.deviations += np.bincount(bits, minlength=_BUCKETS)
        flat = np.subtract(flat, self._low, out=square)
        flat *= self._per_bin
        bins = np.minimum(flat.astype(np.int32), BINS - 1)
        self.histogram += np.bincount(bins, minlength=BINS)

    def _add_squares(self, row: int, column: int, block: Floats, all_finite: bool) -> None:
        square = block * self._per_value
        square *= square
        if not all_finite:
            np.nan_to_num(square, copy=False, nan=0.0)
        self.row_squares[row : row + len(block)] += square.sum(axis=1)
        self.column_squares[column : column + block.shape[1]] += square.sum(axis=0)

    def _keep_largest(self, size: Floats, flat: Floats, first: int, places: NDArray[np.intp] | None) -> None:
        limit = self.largest[0][0] if len(self.largest) == LARGEST_KEPT else -1.0
        if size.max() <= limit:
            return
        few = np.argpartition(size, -LARGEST_KEPT)[-LARGEST_KEPT:] if size.size > LARGEST_KEPT else range(size.size)
        for place in (int(one) for one in few):
            index = first + (place if places is None else int(places[place]))
            self.largest.append((float(size[place]), index, float(flat[place])))
        self.largest = sorted(self.largest)[-LARGEST_KEPT:]


def _inverse(value: float) -> float:
    return 1.0 / value if value > 1e-300 else 0.0


def outliers(distribution: Distribution, shape: tuple[int, ...]) -> Outliers | None:
    """Elements more than about five scales from the mean, beside the number a normal distribution would have there.

    The scale is the median absolute deviation / 0.674, which a few outliers cannot inflate. The limit is the first
    edge of the counting buckets at or above five, so that the count is exact; it is given with the result.
    """
    moments, counts = distribution.moments, distribution.deviations
    if not moments.std or distribution.farthest <= 0:
        return None
    middle = _quantile(counts, 0.5) * distribution.farthest
    scale, origin = middle / _NORMAL_QUARTILE, "median absolute deviation"
    if moments.zero_fraction >= 0.5 or scale < 1e-3 * moments.std:  # most elements are equal, as after pruning
        scale, origin = moments.std, "standard deviation"
    edges = _edges() * distribution.farthest
    bucket = int(np.searchsorted(edges[:-1], OUTLIER_LIMIT * scale * (1 - 1e-9)))
    limit = float(edges[bucket]) / scale
    return Outliers(
        scale=scale,
        scale_from=origin,
        limit=limit,
        count=int(counts[bucket:].sum()),
        expected=moments.finite_count * erfc(limit / sqrt(2.0)),
        largest=tuple(
            Extreme(index, tuple(map(int, np.unravel_index(index, shape))), value, size * distribution.farthest / scale)
            for size, index, value in distribution.largest
        ),
    )


def _edges() -> Floats:
    """Where the buckets of deviations begin; one more than there are buckets."""
    finite = np.arange(255 << (23 - _SHIFT), dtype=np.uint32) << np.uint32(_SHIFT)
    edges = np.full(_BUCKETS + 1, np.inf)
    edges[: len(finite)] = finite.view(np.float32)
    return edges


def _quantile(counts: NDArray[np.int64], share: float) -> float:
    """Of the deviations, interpolated on a log scale inside a bucket an eighth of a power of two wide."""
    below = np.cumsum(counts)
    target = share * float(below[-1])
    bucket = int(np.searchsorted(below, np.float64(target)))
    begin, end = _edges()[bucket : bucket + 2].tolist()
    if begin <= 0:
        return 0.0
    before = below[bucket] - counts[bucket]
    inside = float((target - before) / counts[bucket])
    return 2.0 ** (log2(begin) + inside * (log2(end) - log2(begin)))
