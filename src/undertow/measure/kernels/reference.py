"""The oracle: slow, obvious, and wider than float64 where that matters. Every other kernel is tested against it."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.tensors import array_of, plain
from undertow.measure.partials import (
    EXPONENT_BUCKETS,
    LAST_FINITE_EXPONENT,
    SKETCH_BUCKETS,
    Moment,
    Partials,
    offsets_of,
)
from undertow.measure.signs import signs

Floats = NDArray[np.float64]


class ReferenceKernel:
    name = "reference"

    def measure(self, tensors: Sequence[torch.Tensor], want: Want = Want.ALL) -> Partials:
        arrays = [array_of(plain(tensor).reshape(-1).to("cpu", torch.float64)) for tensor in tensors]
        moments = np.full((len(arrays), len(Moment)), np.nan)
        for row, array in zip(moments, arrays):
            row[Moment.COUNT] = array.size
            if want & Want.MOMENTS:
                _fill_moments(array, row)
        exponents = sketches = None
        if want & Want.EXPONENTS:
            exponents = np.zeros((len(arrays), EXPONENT_BUCKETS), np.int64)
            for row, array in zip(exponents, arrays):
                row += _exponents(array)
        if want & Want.SKETCH:
            sketches = np.concatenate([_sketch(array) for array in arrays]) if arrays else np.zeros(0)
        return Partials(moments, exponents, sketches, offsets_of(np.array([a.size for a in arrays], np.int64)))

    def unit_activity(self, tensor: torch.Tensor, unit_dim: int) -> NDArray[np.uint8]:
        array = array_of(plain(tensor).to("cpu", torch.float64))
        return np.array([np.any(unit != 0) for unit in np.moveaxis(array, unit_dim, 0)], np.uint8)

    def fingerprint(self, tensors: Sequence[torch.Tensor]) -> Floats | None:
        return None


def _fill_moments(array: Floats, row: Floats) -> None:
    finite = array[np.isfinite(array)].astype(np.longdouble)
    row[Moment.NAN] = np.isnan(array).sum()
    row[Moment.POSITIVE_INFINITY] = np.isposinf(array).sum()
    row[Moment.NEGATIVE_INFINITY] = np.isneginf(array).sum()
    row[Moment.ZERO] = (array == 0).sum()
    row[Moment.PIVOT :] = 0.0
    if finite.size:
        row[Moment.MINIMUM], row[Moment.MAXIMUM] = finite.min(), finite.max()
        row[Moment.PIVOT] = finite.mean()
        deviation = finite - np.longdouble(row[Moment.PIVOT])
        with np.errstate(over="ignore"):
            for power in range(1, 5):
                row[Moment.SUM1 + power - 1] = (deviation**power).sum()
            row[Moment.SUM_ABSOLUTE] = np.abs(finite).sum()
            row[Moment.SUM_SQUARE] = (finite**2).sum()


def _exponents(array: Floats) -> NDArray[np.int64]:
    """`frexp` writes x as m·2^e with m in [½, 1), so the biased exponent is e + 126."""
    biased = np.clip(np.frexp(array)[1].astype(np.int64) + 126, 0, LAST_FINITE_EXPONENT)
    biased = np.where(array == 0, 0, np.where(np.isfinite(array), biased, EXPONENT_BUCKETS - 1))
    return np.bincount(biased, minlength=EXPONENT_BUCKETS)


def _sketch(array: Floats) -> Floats:
    buckets = np.zeros(min(SKETCH_BUCKETS, array.size))
    place = np.arange(array.size)
    if array.size:
        np.add.at(buckets, place % len(buckets), signs(place) * np.where(np.isfinite(array), array, 0.0))
    return buckets
