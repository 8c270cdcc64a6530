"""Which part of a tensor this rank holds.

A distributed tensor is a wrapper around a local one. Only the local one is ever touched: an operation on the wrapper
can start a collective, which the other ranks would not take part in.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels.tensors import array_of
from undertow.probe.unseen import modules_of

Ints = NDArray[np.int64]


class Portion(msgspec.Struct, array_like=True, frozen=True):
    """The block `begin` to `begin + extent` of a tensor, in each dimension."""

    shape: tuple[int, ...]
    begin: tuple[int, ...]
    extent: tuple[int, ...]

    @property
    def volume(self) -> int:
        return prod(self.extent)

    @property
    def end(self) -> tuple[int, ...]:
        return tuple(begin + extent for begin, extent in zip(self.begin, self.extent))

    def lies_in(self, other: Self) -> bool:
        within = zip(other.begin, self.begin, self.end, other.end, strict=True)
        return self.volume > 0 and all(first <= begin and end <= last for first, begin, end, last in within)

    def runs(self) -> tuple[int, Ints]:
        """How many elements lie next to each other in the whole tensor, and where each such run begins there.

        Runs follow each other in the local tensor, which is contiguous.
        """
        dims = len(self.shape)
        last = dims  # dimensions from here on are held whole
        while last > 0 and self.extent[last - 1] == self.shape[last - 1]:
            last -= 1
        if not self.volume:
            return 0, np.empty(0, np.int64)
        if last == 0:
            return prod(self.shape), np.zeros(1, np.int64)
        strides = [prod(self.shape[dim + 1 :]) for dim in range(dims)]
        length = self.extent[last - 1] * strides[last - 1]
        starts = np.array([self.begin[last - 1] * strides[last - 1]], np.int64)
        for dim in range(last - 2, -1, -1):
            places = (np.arange(self.extent[dim]) + self.begin[dim]) * strides[dim]
            starts = (places[:, None] + starts).reshape(-1)
        return length, starts


@dataclass(frozen=True, slots=True)
class Spread:
    """How the watched tensors lie over the ranks, by slot: None where this rank holds a plain tensor."""

    portions: tuple[Portion | None, ...]
    wrapped: frozenset[int]  # slots of plain tensors that a wrapper keeps equal on all ranks


def distributed_tensor() -> type | None:
    """The class, if this process has imported it: without it nothing can be one."""
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", None)


_FSDP = ("FSDPModule", "FullyShardedDataParallel")


def is_spread(tensor: Any) -> bool:
    kind = distributed_tensor()
    return kind is not None and isinstance(tensor, kind)


def local_of(tensor: Any) -> Any:
    """The tensor that this rank holds of it. Starts nothing and waits for nothing."""
    return getattr(tensor, "_local_tensor", tensor)


class Summand(msgspec.Struct, array_like=True, frozen=True):
    """This rank's term of a tensor that is a sum over `count` ranks which nobody has taken yet."""

    number: int
    count: int
    values: np.ndarray | None  # None when there are too many to send around


MOST_SUMMAND_ELEMENTS = 32_768


def summand_of(tensor: Any) -> Summand | None:
    """None for a tensor that is no such sum."""
    number, count, factor = 0, 1, 1.0
    coordinates = None
    for dim, placement in enumerate(tensor.placements):
        if not placement.is_partial():
            continue
        coordinates = coordinates or tensor.device_mesh.get_coordinate()
        if coordinates is None:
            return None
        size = tensor.device_mesh.size(dim)
        number, count = number * size + coordinates[dim], count * size
        operation = getattr(placement, "reduce_op", "sum")
        factor = factor / size if operation == "avg" else factor if operation == "sum" else 0.0
    if coordinates is None:
        return None
    local = local_of(tensor).detach()
    if factor == 0.0 or local.numel() > MOST_SUMMAND_ELEMENTS:
        return Summand(number, count, None)
    return Summand(number, count, array_of(local.to("cpu", torch.float64)) * factor)


def whole_here(tensor: Any) -> torch.Tensor | None:
    """All of it, if every rank holds all of it."""
    return local_of(tensor) if all(placement.is_replicate() for placement in tensor.placements) else None


def portion_of(tensor: Any) -> Portion:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape = tuple(tensor.shape)
    extent, begin = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local = tuple(local_of(tensor).shape)
    if tuple(extent) != local:  # as it is, whatever the rule says
        extent = local
    if not prod(local):
        begin = tuple(0 for _ in shape)
    return Portion(shape, tuple(begin), tuple(extent))


def spread_of(
    tensors: Sequence[torch.Tensor], wrapped: Sequence[bool], stretches: Sequence[Portion | None]
) -> Spread | None:
    """None when nothing is spread. `stretches` are those of flat tensors, which are cut without saying so."""
    portions = tuple(portion_of(one) if is_spread(one) else stretch for one, stretch in zip(tensors, stretches))
    kept = frozenset(slot for slot, one in enumerate(wrapped) if one)
    return Spread(portions, kept) if kept or any(portion is not None for portion in portions) else None


def gathers_parameters(module: torch.nn.Module) -> bool:
    """Whether FSDP, of either kind, manages parts of it: its parameters are then plain tensors while it runs."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = tuple(kind for name in _FSDP if (kind := getattr(fsdp, name, None)) is not None)
    return bool(kinds) and any(isinstance(part, kinds) for part in modules_of(module))
