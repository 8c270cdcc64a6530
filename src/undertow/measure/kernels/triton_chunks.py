"""How a list of tensors is cut into chunks, one for each program, and where their results lie.

The cut depends on the numbers of elements and the formats only and is kept on the device for the next call; the
addresses of gradients change from step to step and are kept apart.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.partials import EXPONENT_BUCKETS, SKETCH_BUCKETS

_FEWEST_ROWS, _MOST_ROWS = 32, 508  # of a chunk; a row is as wide as a sketch, and a counter holds no more than 511
_BEGINNING = 13  # rows could be read while a program begins and ends
_SLACK = (1.0, 1.01, 1.02, 1.03, 1.05, 1.07)
_PROCESSORS = 132  # of a device that does not say
_MOST_TABLES = 32

# Columns that a program merges: fewer, of more chunks at a time, where a tensor has more than so many chunks.
TALL_TENSOR = 32
MERGED_COLUMNS, TALL_MERGED_COLUMNS = 256, 16
_ALL_COLUMNS = EXPONENT_BUCKETS + SKETCH_BUCKETS


@dataclass(frozen=True, slots=True)
class Chunks:
    """Small tensors on the device. The chunks of a tensor are neighbours, from `first_of[i]` to `first_of[i + 1]`."""

    number: int
    first_of: torch.Tensor
    merges: torch.Tensor
    # For each format what its programs work on, largest first: chunk, tensor, begin (in elements) and length of each.
    records: tuple[tuple[torch.dtype, torch.Tensor], ...]


@lru_cache(maxsize=32)
def chunks_of(counts: tuple[int, ...], formats: tuple[torch.dtype, ...], device: torch.device, programs: int) -> Chunks:
    """`programs` run beside each other on a processor of the device."""
    sizes = np.array(counts, np.int64)
    length = _rows(-(-sizes // SKETCH_BUCKETS), programs * _processors(device)) * SKETCH_BUCKETS
    numbers = -(-sizes // length)
    first = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(numbers, out=first[1:])
    tensors = np.repeat(np.arange(len(sizes)), numbers)
    starts = (np.arange(first[-1]) - first[tensors]) * length
    lengths = np.minimum(sizes[tensors] - starts, length)
    table = np.stack([np.arange(first[-1]), tensors, starts, lengths], 1)[np.argsort(-lengths, kind="stable")]
    records: list[tuple[torch.dtype, torch.Tensor]] = []
    for one in dict.fromkeys(formats):
        mine = np.array([other == one for other in formats], np.bool_)
        chosen = table[mine[table[:, 1]]]
        if len(chosen):
            records.append((one, on_device(chosen, device)))
    return Chunks(
        int(first[-1]),
        on_device(first.astype(np.int32), device),
        on_device(merges_of(numbers), device),
        tuple(records),
    )


def rows_alone(count: int, device: torch.device, programs: int) -> int:
    """Of the chunks of a tensor that is measured alone, as `chunks_of` cuts it."""
    return _rows(np.array([-(-count // SKETCH_BUCKETS)], np.int64), programs * _processors(device))


def merges_of(chunks: NDArray[np.int64]) -> NDArray[np.int32]:
    """The programs that merge tensors of so many chunks: a tensor, and which columns of it, or 255 for its moments."""
    tensors = np.arange(len(chunks), dtype=np.int32)[:, None] << 8
    few = tensors[chunks <= TALL_TENSOR] | np.arange(_ALL_COLUMNS // MERGED_COLUMNS, dtype=np.int32)
    many = tensors[chunks > TALL_TENSOR] | np.arange(_ALL_COLUMNS // TALL_MERGED_COLUMNS, dtype=np.int32)
    return np.concatenate([many.ravel(), (tensors | 255).ravel(), few.ravel()])


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else _PROCESSORS


def _rows(rows: NDArray[np.int64], slots: int) -> int:
    """So many for each chunk that all slots for programs are done at about the same time."""
    share = int(rows.sum()) / slots
    if share <= _FEWEST_ROWS:
        return _FEWEST_ROWS
    rounds = math.ceil(share / _MOST_ROWS)
    # The slack is for the last chunks of tensors, which are seldom whole ones.
    fair = [share / (rounds + more) * slack for more in (0, 1) for slack in (_SLACK if len(rows) > 1 else (1.0,))]
    candidates = [min(max(math.ceil(one / 4) * 4, _FEWEST_ROWS), _MOST_ROWS) for one in fair]
    return min(candidates, key=lambda candidate: _slowest(rows, slots, candidate)) if len(rows) > 1 else candidates[0]


def _slowest(rows: NDArray[np.int64], slots: int, length: int) -> int:
    """How many rows the busiest slot gets if the largest chunks go first, each to whoever is free."""
    numbers, rest = np.divmod(rows, length)
    lengths = [length] * int(numbers.sum()) + sorted(rest[rest > 0].tolist(), reverse=True)
    busy = [0] * slots
    for one in lengths:
        heapq.heapreplace(busy, busy[0] + one + _BEGINNING)
    return max(busy)


class AddressTables:
    """Addresses on the device. A table is never written again, so nothing has to wait for its readers."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[torch.device, bytes], torch.Tensor] = OrderedDict()

    def table(self, addresses: bytes, device: torch.device) -> torch.Tensor:
        """Of 8 bytes each."""
        key = device, addresses
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = on_device(np.frombuffer(bytearray(addresses), np.int64), device)
            if len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return found


def on_device(numbers: NDArray[np.int32] | NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """Copied without waiting for the device: from pinned memory, which torch keeps until the copy is done."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
