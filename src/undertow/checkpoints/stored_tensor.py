"""A tensor of a torch file, read where it lies: only its own elements, and only while they are wanted."""

from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.checkpoints.checkpoint import Entry, UnreadableCheckpointError, no_plain_floats
from undertow.checkpoints.elements import STORED, Elements
from undertow.checkpoints.naming import kind_of
from undertow.checkpoints.stored_bytes import read_numbers
from undertow.checkpoints.torch_pickle import OddTensor, StoredTensor
from undertow.schema.checkpoints import Skipped

MOST_REPEATED = 1 << 30  # bytes that an expanded tensor may come to; laid out it takes that much memory


def entry_of_stored(path: str, file: Path, places: dict[str, int], tensor: StoredTensor | OddTensor) -> Entry | Skipped:
    """`places`: where in the file the bytes of each storage begin."""
    if isinstance(tensor, OddTensor):
        return Skipped(path, tensor.reason)
    if tensor.dtype not in STORED:
        return no_plain_floats(path, tensor.dtype)
    dtype, shape, storage = STORED[tensor.dtype], tensor.shape, tensor.storage
    # A storage without a type counts bytes.
    count = storage.count // (1 if storage.dtype == tensor.dtype else dtype.itemsize)
    if prod(shape) and tensor.offset + _reach(tensor) > count:
        raise UnreadableCheckpointError(
            f"{file} is no intact torch file: tensor {path!r} lies outside of its storage",
            way_out="Copy it again, or save it again",
        )
    size, stored = prod(shape) * dtype.itemsize, count * dtype.itemsize
    if size > max(stored, MOST_REPEATED):
        return Skipped(path, f"it repeats {stored:,} stored bytes until they are {size:,}")
    begin = places[storage.key] + (storage.first + tensor.offset) * dtype.itemsize if size else 0
    load = partial(_load, path, file, tensor, begin)
    where = (file, storage.key, storage.first, tensor.offset, shape, tensor.stride) if size else None
    return Entry(path, kind_of(path, shape), shape, tensor.dtype, load, storage=where)


def _reach(tensor: StoredTensor) -> int:
    """Elements of the storage from the first to the last one that belongs to it."""
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride, strict=True))


def _load(path: str, file: Path, tensor: StoredTensor, begin: int) -> Elements:
    dtype, shape = STORED[tensor.dtype], tensor.shape
    if not prod(shape):
        return Elements(np.zeros(shape, dtype), tensor.dtype)
    try:
        stretch = read_numbers(file, dtype, _reach(tensor), begin)
    except (OSError, EOFError) as problem:
        why = getattr(problem, "strerror", None) or f"it ends inside tensor {path!r}"
        raise UnreadableCheckpointError(
            f"{file} is no intact torch file: {why}", way_out="Copy it again, or save it again"
        ) from problem
    strides = [step * dtype.itemsize for step in tensor.stride]
    laid_out: NDArray[Any] = np.lib.stride_tricks.as_strided(stretch, shape, strides, writeable=False)
    return Elements(np.ascontiguousarray(laid_out).reshape(shape), tensor.dtype)
