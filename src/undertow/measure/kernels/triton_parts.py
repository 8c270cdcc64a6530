"""The Triton program that sketches parts of tensors by the places of their elements in the whole.

A pass of its own over what this process holds: rows are those of the whole tensor, so that every element meets its
bucket where it lies, whatever the part begins with. Sketches of all parts add up to that of the whole.
"""

# Much of what follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl

from undertow.measure.kernels.triton_chunks import merges_of, on_device
from undertow.measure.kernels.triton_elements import mix, store_sketch, wide
from undertow.measure.partials import SKETCH_BUCKETS
from undertow.measure.shards import Places

INFINITY = tl.constexpr(float("inf"))
_FEWEST_ROWS, _MOST_ROWS = 32, 512  # of a chunk
_PROGRAMS = 800  # wanted, so that a large device is busy


@dataclass(frozen=True, slots=True)
class PartChunks:
    """Small tensors on the device: what each program works on, and where each part lies in its tensor."""

    number: int
    tensor_of: torch.Tensor
    row_of: torch.Tensor  # the first row of the whole
    rows_of: torch.Tensor  # how many
    first_of: torch.Tensor  # chunk of each tensor
    merges: torch.Tensor
    places: torch.Tensor  # first, length, stride and number of runs of each tensor
    orders: tuple[tuple[torch.dtype, torch.Tensor], ...]


@lru_cache(maxsize=32)
def part_chunks(parts: tuple[Places, ...], formats: tuple[torch.dtype, ...], device: torch.device) -> PartChunks:
    table = np.array([(one.first, one.length, one.stride, one.number) for one in parts], np.int64)
    first, length, stride, runs = table.T
    filled = (length > 0) & (runs > 0)
    begin = first // SKETCH_BUCKETS
    end = np.where(filled, -(-(first + (runs - 1) * stride + length) // SKETCH_BUCKETS), begin)
    rows = min(max(int((end - begin).sum()) // _PROGRAMS, _FEWEST_ROWS), _MOST_ROWS)
    numbers = -(-(end - begin) // rows)
    first_of = np.concatenate([[0], np.cumsum(numbers)])
    tensors = np.repeat(np.arange(len(parts)), numbers)
    row = begin[tensors] + (np.arange(first_of[-1]) - first_of[tensors]) * rows
    orders: list[tuple[torch.dtype, torch.Tensor]] = []
    for one in dict.fromkeys(formats):
        mine = np.array([other == one for other in formats], np.bool_)
        order = np.flatnonzero(mine[tensors])
        if len(order):
            orders.append((one, on_device(order.astype(np.int32), device)))
    return PartChunks(
        int(first_of[-1]),
        on_device(tensors.astype(np.int32), device),
        on_device(row.astype(np.int64), device),
        on_device(np.minimum(end[tensors] - row, rows).astype(np.int32), device),
        on_device(first_of.astype(np.int32), device),
        on_device(merges_of(numbers), device),
        on_device(table.reshape(-1), device),
        tuple(orders),
    )


@triton.jit
def sketch_part_chunks(
    addresses, tensor_of, row_of, rows_of, places, order, sketches, FORMAT: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """The sums of a chunk's rows, in float64 and in a fixed order."""
    chunk = tl.load(order + tl.program_id(0)).to(tl.int64)
    tensor = tl.load(tensor_of + chunk).to(tl.int64)
    pointer = tl.load(addresses + tensor).to(tl.pointer_type(FORMAT))
    first, length = tl.load(places + tensor * 4), tl.load(places + tensor * 4 + 1)
    stride, runs = tl.load(places + tensor * 4 + 2), tl.load(places + tensor * 4 + 3)
    start, rows = tl.load(row_of + chunk), tl.load(rows_of + chunk)
    threads = tl.arange(0, 1024 // LANES)[:, None]
    offsets = threads * LANES + tl.arange(0, LANES)[None, :]
    words, bits = threads // (32 // LANES), (offsets % 32).to(tl.uint32)
    sketch = tl.zeros((1024 // LANES, LANES), tl.float64)
    for at in range(rows):
        row = start + at
        ahead = row * 1024 - first  # from the first element of the part to this row; below 0 in the first one
        run = tl.maximum(ahead, 0) // stride
        within = ahead - run * stride + offsets
        if stride >= 1024:
            later = (within >= stride).to(tl.int64)
        else:
            later = (within.to(tl.int32) // stride.to(tl.int32)).to(tl.int64)
        within -= later * stride
        here = (within >= 0) & (within < length) & (run + later >= 0) & (run + later < runs)
        x = wide(tl.load(pointer + (run + later) * length + within, mask=here, other=0)).to(tl.float64)
        calm = tl.where(tl.abs(x) < INFINITY, x, 0.0)
        flip = (mix((row * 32).to(tl.uint32) + words) >> bits) & 1
        sketch += tl.where(flip == 1, -calm, calm)
    store_sketch(sketches + chunk * 1024, sketch, LANES)
