"""Readings of lists of tensors as the C kernel leaves them, each in one piece; and what many of them say."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.measure.kernels.interface import MARKS, Want
from undertow.measure.partials import EXPONENT_BUCKETS, Moment, Partials
from undertow.schema.quantities import STATISTIC_NAMES

_native: Any
try:
    from undertow.measure.kernels import _native  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # built without a C compiler: then nothing is packed either
    _native = None

Floats = NDArray[np.float64]

_MOMENTS, _EXPONENTS, _SKETCH, _ALL = len(Moment), int(Want.EXPONENTS), int(Want.SKETCH), int(Want.ALL)


@dataclass(slots=True)
class Packed:
    """A reading of `PlainTensors`: `data` is a mark, and then the partial values of the tensors, in one piece."""

    data: bytes
    flags: int  # what was wanted
    offsets: NDArray[np.int64]

    @property
    def is_complete(self) -> bool:
        return self.flags == _ALL

    @property
    def moments(self) -> NDArray[np.float64]:
        number = len(self.offsets) - 1
        return np.frombuffer(self.data, np.float64, number * _MOMENTS, 8 * MARKS * number).reshape(number, _MOMENTS)

    def to_host(self) -> Partials:
        """The same as arrays, which look into the bytes."""
        number, moments, exponents, sketches = len(self.offsets) - 1, self.moments, None, None
        at = 8 * MARKS * number + moments.nbytes
        if self.flags & _EXPONENTS:
            exponents = np.frombuffer(self.data, np.int64, number * EXPONENT_BUCKETS, at)
            at += exponents.nbytes
            exponents = exponents.reshape(number, EXPONENT_BUCKETS)
        if self.flags & _SKETCH:
            sketches = np.frombuffer(self.data, np.float64, -1, at)
        return Partials(moments, exponents, sketches, self.offsets)


def statistics_of_many(readings: Sequence[Packed]) -> Floats:
    """`statistics.statistics` of complete readings of the same tensors: readings × statistics × tensors."""
    offsets = readings[0].offsets
    number = len(offsets) - 1
    out = np.empty((len(readings), len(STATISTIC_NAMES), number))
    _native.packed_statistics([one.data for one in readings], number, int(offsets[-1]), out)
    return out


def directions_of_many(
    gradients: Sequence[Packed],
    weights: Sequence[Packed],
    sums: Floats,
    gradient_before: Floats,
    weight_before: Floats,
    change_before: Floats,
    start: Floats,
) -> Floats:
    """`sketches.directions` of complete readings that follow one another, into `sums` (readings × directions ×
    tensors); returns the last change of the weights.
    """
    offsets = gradients[0].offsets
    changes = np.empty((2, int(offsets[-1])))
    _native.packed_directions(
        [one.data for one in gradients],
        [one.data for one in weights],
        offsets,
        sums,
        changes,
        gradient_before,
        weight_before,
        change_before,
        start,
    )
    return changes[(len(gradients) - 1) % 2].copy()
