"""What one pass over a list of tensors leaves behind: a few numbers each, that merge and scale.

Numbers only; torch is not needed to read or combine them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

SKETCH_BUCKETS = 1024
EXPONENT_BUCKETS = 256
LAST_FINITE_EXPONENT = 254

Floats = NDArray[np.float64]


class Moment(IntEnum):
    """Columns of `Partials.moments`. Sums and extremes are over the finite elements."""

    COUNT = 0  # all elements
    NAN = 1
    POSITIVE_INFINITY = 2
    NEGATIVE_INFINITY = 3
    ZERO = 4  # exactly zero, either sign
    MINIMUM = 5  # NaN when there is no finite element
    MAXIMUM = 6
    PIVOT = 7  # the point around which SUM1 … SUM4 are taken; kernels choose it near the mean
    SUM1 = 8
    SUM2 = 9
    SUM3 = 10
    SUM4 = 11
    SUM_ABSOLUTE = 12
    SUM_SQUARE = 13  # of x itself, not of x − pivot


@dataclass(frozen=True, slots=True)
class Central:
    """Number of finite elements, their mean, and the sums of the 2nd, 3rd and 4th power of x − mean."""

    count: Floats
    mean: Floats
    second: Floats
    third: Floats
    fourth: Floats


@dataclass(frozen=True, slots=True)
class Partials:
    """Partial values of n tensors.

    moments: n × len(Moment). exponents: n × 256 counts by biased float32 exponent (0: zero or float32
    denormal, 255: non-finite; finite values beyond float32 count in 254). sketches: all sketches end to
    end; that of tensor i is sketches[offsets[i]:offsets[i + 1]], min(1024, number of elements) long.
    """

    moments: Floats
    exponents: NDArray[np.int64] | None
    sketches: Floats | None
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def finite(self) -> Floats:
        """How many elements of each tensor are finite."""
        moments = self.moments
        return moments[:, Moment.COUNT] - moments[:, Moment.NAN : Moment.NEGATIVE_INFINITY + 1].sum(axis=1)

    def central(self) -> Central:
        """The moments around the mean instead of the pivot."""
        count = self.finite()
        some = np.maximum(count, 1.0)
        pivot, first, second, third, fourth = self.moments.T[Moment.PIVOT : Moment.SUM4 + 1]
        with np.errstate(all="ignore"):  # float64 beyond 1e75 becomes inf or NaN, which is the honest answer
            shift = first / some
            square = shift * shift
            return Central(
                count,
                pivot + shift,
                np.maximum(second - count * square, 0.0),
                third - 3.0 * shift * second + 2.0 * count * square * shift,
                fourth - 4.0 * shift * third + 6.0 * square * second - 3.0 * count * square * square,
            )

    def merge(self, other: Partials) -> Partials:
        """These tensors and other parts of the same tensors, as if measured together."""
        if len(self) != len(other):
            raise ValueError(f"cannot merge partial values of {len(self)} tensors with those of {len(other)}")
        moments = self.moments + other.moments
        moments[:, Moment.MINIMUM] = np.fmin(self.moments[:, Moment.MINIMUM], other.moments[:, Moment.MINIMUM])
        moments[:, Moment.MAXIMUM] = np.fmax(self.moments[:, Moment.MAXIMUM], other.moments[:, Moment.MAXIMUM])
        moments[:, Moment.PIVOT : Moment.SUM4 + 1] = _merge_central(self.central(), other.central())
        exponents = sketches = None
        if self.exponents is not None and other.exponents is not None:
            exponents = self.exponents + other.exponents
        if self.sketches is not None and other.sketches is not None:
            if not np.array_equal(self.offsets, other.offsets):
                raise ValueError("cannot merge sketches of different lengths")
            sketches = self.sketches + other.sketches
        return Partials(moments, exponents, sketches, self.offsets)

    def scaled(self, factor: ArrayLike) -> Partials:
        """As if every tensor had been multiplied by factor (one for all, or one each).

        Exact for powers of two. Otherwise exponents move by the nearest whole power of two, because the
        histogram cannot say how an exponent's elements would divide between two.
        """
        each = np.broadcast_to(np.asarray(factor, np.float64), (len(self),))
        if not np.all(np.isfinite(each) & (each != 0)):
            raise ValueError(f"cannot scale by {factor}: every factor must be finite and not zero")
        moments = self.moments.copy()
        low, high = moments[:, Moment.MINIMUM] * each, moments[:, Moment.MAXIMUM] * each
        infinities = moments[:, Moment.POSITIVE_INFINITY], moments[:, Moment.NEGATIVE_INFINITY]
        negative = each < 0
        moments[:, Moment.MINIMUM], moments[:, Moment.MAXIMUM] = np.minimum(low, high), np.maximum(low, high)
        moments[:, Moment.POSITIVE_INFINITY], moments[:, Moment.NEGATIVE_INFINITY] = (
            np.where(negative, infinities[1], infinities[0]),
            np.where(negative, infinities[0], infinities[1]),
        )
        moments[:, Moment.PIVOT] *= each
        for power, column in enumerate((Moment.SUM1, Moment.SUM2, Moment.SUM3, Moment.SUM4), start=1):
            moments[:, column] *= each**power
        moments[:, Moment.SUM_ABSOLUTE] *= np.abs(each)
        moments[:, Moment.SUM_SQUARE] *= each * each
        exponents, sketches = self.exponents, self.sketches
        if exponents is not None:
            exponents = _shift_exponents(exponents, np.rint(np.log2(np.abs(each))).astype(np.int64))
        if sketches is not None:
            sketches = sketches * np.repeat(each, np.diff(self.offsets))
        return replace(self, moments=moments, exponents=exponents, sketches=sketches)


def offsets_of(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the sketch of each tensor begins and ends, given the numbers of elements."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(np.minimum(counts, SKETCH_BUCKETS), out=offsets[1:])
    return offsets


def _merge_central(a: Central, b: Central) -> Floats:
    """The columns PIVOT … SUM4 of both together, with the common mean as the pivot."""
    count = a.count + b.count
    some = np.maximum(count, 1.0)
    delta = b.mean - a.mean
    step = delta / some
    columns = np.zeros((len(count), 5))
    with np.errstate(all="ignore"):
        product = a.count * b.count
        columns[:, 0] = np.where(a.count == 0, b.mean, a.mean + step * b.count)
        columns[:, 2] = a.second + b.second + delta * step * product
        columns[:, 3] = (
            a.third
            + b.third
            + delta * step * step * product * (a.count - b.count)
            + 3.0 * step * (a.count * b.second - b.count * a.second)
        )
        columns[:, 4] = (
            a.fourth
            + b.fourth
            + delta * step**3 * product * (a.count**2 - product + b.count**2)
            + 6.0 * step**2 * (a.count**2 * b.second + b.count**2 * a.second)
            + 4.0 * step * (a.count * b.third - b.count * a.third)
        )
    return columns


def _shift_exponents(exponents: NDArray[np.int64], shifts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Move counts of normal values up or down; what leaves the range stays at its edge."""
    moved = np.zeros_like(exponents)
    moved[:, [0, EXPONENT_BUCKETS - 1]] = exponents[:, [0, EXPONENT_BUCKETS - 1]]
    for shift in np.unique(shifts).tolist():
        rows = np.flatnonzero(shifts == shift)
        normal = exponents[rows, 1 : LAST_FINITE_EXPONENT + 1]
        shift = max(-LAST_FINITE_EXPONENT, min(LAST_FINITE_EXPONENT, shift))
        if shift < 0:
            moved[rows, 0] += normal[:, :-shift].sum(axis=1)
            moved[rows, 1 : LAST_FINITE_EXPONENT + 1 + shift] = normal[:, -shift:]
        else:
            moved[rows, 1 + shift : LAST_FINITE_EXPONENT + 1] = normal[:, : LAST_FINITE_EXPONENT - shift]
            moved[rows, LAST_FINITE_EXPONENT] += normal[:, LAST_FINITE_EXPONENT - shift :].sum(axis=1)
    return moved


@lru_cache(maxsize=256)
def offsets_alone(count: int) -> NDArray[np.int64]:
    """Of a single tensor; not to be written to."""
    offsets = offsets_of(np.array([count], np.int64))
    offsets.flags.writeable = False
    return offsets
