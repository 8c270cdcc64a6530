"""The sketch of a part of a tensor, by the places of its elements in the whole: sketches of all parts add up."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels.tensors import FORMATS, array_of, plain
from undertow.measure.partials import SKETCH_BUCKETS
from undertow.measure.signs import signs

_native_runs: Callable[..., None] | None
try:
    from undertow.measure.kernels import _native  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]

    _native_runs = _native.sketch_runs
except (ImportError, AttributeError):  # built without a C compiler
    _native_runs = None

_CHUNK = 1 << 16  # elements worked on at a time


@dataclass(frozen=True, slots=True)
class Places:
    """Where the elements of a part lie in the whole: runs of `length`, the first at `first`, each `stride` further."""

    first: int
    length: int
    stride: int
    number: int
    count: int  # elements of the whole


def places_of(length: int, starts: NDArray[np.int64], count: int) -> Places | None:
    """None where the runs are not evenly spaced: the part is cut in three or more dimensions."""
    if not length or not len(starts):
        return Places(0, 0, max(count, 1), 0, count)
    steps = np.diff(starts)
    if len(steps) and (steps != steps[0]).any():
        return None
    return Places(int(starts[0]), length, int(steps[0]) if len(steps) else max(count, 1), len(starts), count)


def sketch_of_part(part: torch.Tensor, length: int, starts: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """`part` is on the CPU: runs of `length` elements, which begin at `starts` in the whole of `count` elements."""
    out = np.zeros(min(SKETCH_BUCKETS, count))
    flat = plain(part)
    if flat.numel() != length * len(starts):
        raise ValueError(f"a part of {flat.numel()} elements cannot be {len(starts)} runs of {length}")
    if not flat.numel():
        return out
    if _native_runs is not None:
        _native_runs(flat.data_ptr(), FORMATS[flat.dtype], length, np.ascontiguousarray(starts), out)
        return out
    return in_numpy(flat, length, starts, out)


def in_numpy(
    flat: torch.Tensor, length: int, starts: NDArray[np.int64], out: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The same without the C kernel; slower."""
    flat = flat.reshape(-1)
    for begin in range(0, flat.numel(), _CHUNK):
        values = array_of(flat[begin : begin + _CHUNK].to(torch.float64))
        local = np.arange(begin, begin + len(values))
        places = starts[local // length] + local % length
        calm = np.where(np.isfinite(values), values, 0.0)
        out += np.bincount(places % len(out), signs(places) * calm, len(out))
    return out
