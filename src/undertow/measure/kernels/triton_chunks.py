"""How a list of tensors is cut into chunks, one for each program, and where their results lie.

The cut depends on the numbers of elements and the formats only and is kept on the device for the next call; the
addresses of gradients change from step to step and are kept apart.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.partials import SKETCH_BUCKETS

_FEWEST_ROWS, _MOST_ROWS = 32, 512  # of a chunk; a row is as wide as a sketch
_PROGRAMS = 3  # that run beside each other on a processor
_PROCESSORS = 132  # of a device that does not say
_MOST_TABLES = 32


@dataclass(frozen=True, slots=True)
class Chunks:
    """Small tensors on the device. The chunks of a tensor are neighbours, from `first_of[i]` to `first_of[i + 1]`."""

    number: int
    tensor_of: torch.Tensor
    start_of: torch.Tensor  # in elements of its tensor
    length_of: torch.Tensor
    first_of: torch.Tensor
    orders: tuple[tuple[torch.dtype, torch.Tensor], ...]  # the chunks of each format, full ones first


@lru_cache(maxsize=32)
def chunks_of(counts: tuple[int, ...], formats: tuple[torch.dtype, ...], device: torch.device) -> Chunks:
    sizes = np.array(counts, np.int64)
    length = _rows(int(sizes.sum()), device) * SKETCH_BUCKETS
    numbers = -(-sizes // length)
    first = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(numbers, out=first[1:])
    tensors = np.repeat(np.arange(len(sizes)), numbers)
    starts = (np.arange(first[-1]) - first[tensors]) * length
    lengths = np.minimum(sizes[tensors] - starts, length)
    by_size = np.argsort(-lengths, kind="stable")
    orders: list[tuple[torch.dtype, torch.Tensor]] = []
    for one in dict.fromkeys(formats):
        mine = np.array([other == one for other in formats], np.bool_)
        order = by_size[mine[tensors[by_size]]]
        if len(order):
            orders.append((one, on_device(order.astype(np.int32), device)))
    return Chunks(
        int(first[-1]),
        on_device(tensors.astype(np.int32), device),
        on_device(starts, device),
        on_device(lengths.astype(np.int32), device),
        on_device(first.astype(np.int32), device),
        tuple(orders),
    )


def _rows(elements: int, device: torch.device) -> int:
    """So many that the chunks just fill whole rounds of programs, at least two: no processor waits for the last."""
    processors = (
        torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else _PROCESSORS
    )
    rows, programs = elements / SKETCH_BUCKETS, processors * _PROGRAMS
    rounds = max(2, math.ceil(rows / (programs * _MOST_ROWS)))
    fair = rows / (programs * rounds) * 1.03  # the last chunk of a tensor is seldom a whole one
    return min(max(math.ceil(fair / 8) * 8, _FEWEST_ROWS), _MOST_ROWS)


class AddressTables:
    """Addresses on the device. A table is never written again, so nothing has to wait for its readers."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[torch.device, bytes], torch.Tensor] = OrderedDict()

    def table(self, tensors: list[torch.Tensor], device: torch.device) -> torch.Tensor:
        addresses = np.array([tensor.data_ptr() for tensor in tensors], np.int64)
        key = device, addresses.tobytes()
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = on_device(addresses, device)
            if len(self._tables) > _MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return found


def on_device(numbers: NDArray[np.int32] | NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """Copied without waiting for the device: from pinned memory, which torch keeps until the copy is done."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
