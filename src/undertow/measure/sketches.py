"""Norms, cosines and distances of whole tensors from their sketches, for many tensors at once.

Packed sketches may come as one row or as many rows (one per step); results then have as many rows.
A sketch is linear, so the sketch of a difference is the difference of sketches. With m buckets a norm is
right within 3/√(2m) and a cosine within 3/√m in 99 of 100 draws.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_native_sums: Callable[..., None] | None
_native_directions: Callable[..., None] | None
try:
    from undertow.measure.kernels import _native  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]

    _native_sums, _native_directions = _native.stretch_sums, _native.direction_sums
except ImportError:  # built without a C compiler
    _native_sums = _native_directions = None

Floats = NDArray[np.float64]
Offsets = NDArray[np.int64]


def norms(sketches: Floats, offsets: Offsets) -> Floats:
    """The L2 norm of each tensor; 0 for an empty one."""
    return np.sqrt(_products(sketches, sketches, offsets))


def distances(a: Floats, b: Floats, offsets: Offsets) -> Floats:
    """The L2 norm of the difference of each pair; exactly 0 where nothing moved."""
    if _native_sums is not None:
        return np.sqrt(_natively(a, b, offsets, differences=True))
    return norms(a - b, offsets)


def cosines(a: Floats, b: Floats, offsets: Offsets) -> Floats:
    """The cosine of each pair; NaN where either one is zero."""
    product = norms(a, offsets) * norms(b, offsets)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(np.where(product > 0, _products(a, b, offsets) / product, np.nan), -1.0, 1.0)


class Direction(IntEnum):
    """Rows of what `directions` fills: sums over each tensor's buckets. The change is weight − weight before."""

    GRADIENT = 0  # squared length
    GRADIENT_TURN = 1  # product with the gradient before
    WEIGHT = 2  # squared length
    TO_START = 3  # product with the start
    DRIFT = 4  # squared distance from the start
    CHANGE = 5  # squared length
    CHANGE_TURN = 6  # product with the change before
    DESCENT = 7  # product with the gradient


def directions(
    offsets: Offsets,
    out: Floats,
    change: Floats,
    gradient: Floats | None,
    gradient_before: Floats | None,
    weight: Floats | None,
    weight_before: Floats | None,
    change_before: Floats | None,
    start: Floats | None,
) -> None:
    """Fill `out` (len(Direction) × tensors) and `change`; rows that need a missing sketch are left alone."""
    if _native_directions is not None:
        _native_directions(offsets, out, change, gradient, gradient_before, weight, weight_before, change_before, start)
        return

    def fill(row: Direction, a: Floats | None, b: Floats | None) -> None:
        if a is not None and b is not None:
            out[row] = _sums(a * b, offsets)

    fill(Direction.GRADIENT, gradient, gradient)
    fill(Direction.GRADIENT_TURN, gradient, gradient_before)
    fill(Direction.WEIGHT, weight, weight)
    fill(Direction.TO_START, weight, start)
    if weight is not None and start is not None:
        out[Direction.DRIFT] = _sums((weight - start) ** 2, offsets)
    if weight is not None and weight_before is not None:
        np.subtract(weight, weight_before, out=change)
        fill(Direction.CHANGE, change, change)
        fill(Direction.CHANGE_TURN, change, change_before)
        fill(Direction.DESCENT, change, gradient)


def fold(sketches: Floats, offsets: Offsets, width: int = 64) -> NDArray[np.float32]:
    """Shorter sketches to store: bucket b is added to b mod width. One row per tensor."""
    index = _fold_index(offsets.tobytes(), width)
    size = (len(offsets) - 1) * width
    with np.errstate(over="ignore"):
        return np.bincount(index, sketches, size)[:size].astype(np.float32).reshape(-1, width)


@lru_cache(maxsize=8)
def _fold_index(offsets_bytes: bytes, width: int) -> NDArray[np.int64]:
    offsets = np.frombuffer(offsets_bytes, np.int64)
    lengths = np.diff(offsets)
    row = np.repeat(np.arange(len(lengths)), lengths)
    return row * width + (np.arange(offsets[-1]) - offsets[row]) % width


def _products(a: Floats, b: Floats, offsets: Offsets) -> Floats:
    return _sums(a * b, offsets) if _native_sums is None else _natively(a, b, offsets, differences=False)


def _natively(a: Floats, b: Floats, offsets: Offsets, differences: bool) -> Floats:
    """In one pass and without temporary arrays; rows of `a` against those of `b`, or all against one."""
    assert _native_sums is not None
    out = np.zeros((*a.shape[:-1], len(offsets) - 1))
    if out.size:
        _native_sums(np.ascontiguousarray(a), np.ascontiguousarray(b), offsets, int(differences), out)
    return out


def _sums(values: Floats, offsets: Offsets) -> Floats:
    """The sum of each tensor's stretch; `reduceat` alone would take an empty one for its neighbour."""
    starts, filled = _stretches(offsets.tobytes())
    if filled is None:
        return np.add.reduceat(values, starts, axis=-1) if len(starts) else np.zeros((*values.shape[:-1], 0))
    out = np.zeros((*values.shape[:-1], len(filled)))
    if len(starts):
        out[..., filled] = np.add.reduceat(values, starts, axis=-1)
    return out


@lru_cache(maxsize=8)
def _stretches(offsets_bytes: bytes) -> tuple[Offsets, NDArray[np.bool_] | None]:
    """Where the stretches with anything in them begin, and which those are (None: all)."""
    offsets = np.frombuffer(offsets_bytes, np.int64)
    filled = np.diff(offsets) > 0
    return offsets[:-1][filled], None if filled.all() else filled
