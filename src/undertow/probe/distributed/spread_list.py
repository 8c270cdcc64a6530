"""Lists of tensors of which this rank holds a part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels.interface import Kernel, Want
from undertow.measure.partials import Partials
from undertow.measure.shards import Places, places_of, sketch_of_part
from undertow.probe.distributed.fsdp import are_exchanged, local_stretch
from undertow.probe.distributed.portions import Portion, Spread, is_spread, local_of, summand_of
from undertow.probe.readings import Reading
from undertow.probe.tensor_list import TensorList

Runs = tuple[int, NDArray[np.int64]]
Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class SpreadList(TensorList):
    """What is read are the local parts; their sketches are taken by the places in the whole."""

    asked: bool = True  # the native kernel would read the wrappers
    is_spread: bool = True
    spread: Spread = field(default_factory=lambda: Spread((), frozenset()))
    _runs: dict[int, Runs] = field(default_factory=dict[int, Runs])

    def tensors(self) -> list[torch.Tensor]:
        portions = [self.spread.portions[slot] for slot in self.slots.tolist()]
        found = TensorList.tensors(self)
        exchanged = not self.of_gradients or are_exchanged(self.parameters, found, portions)
        return [
            local_of(one) if portion is None or is_spread(one) else local_stretch(one, portion, exchanged)
            for one, portion in zip(found, portions)
        ]

    def placed(
        self, readings: list[Reading], tensors: Sequence[torch.Tensor], kernel_for: Callable[[str], Kernel]
    ) -> list[Reading]:
        found = zip(self.slots.tolist(), TensorList.tensors(self)) if self.of_gradients else ()
        terms = {slot: summand_of(tensor) for slot, tensor in found if is_spread(tensor)}
        for reading in readings:
            reading.terms = {
                slot: terms[slot] for slot in reading.slots.tolist() if terms.get(slot) is not None
            } or None
        return [self._placed(reading, tensors, kernel_for) for reading in readings]

    def _placed(
        self, reading: Reading, tensors: Sequence[torch.Tensor], kernel_for: Callable[[str], Kernel]
    ) -> Reading:
        partials: Any = reading.partials
        place_of = {slot: place for place, slot in enumerate(self.slots.tolist())}
        if not isinstance(partials, Partials):  # still on its device
            chosen = [(slot, tensors[place_of[slot]]) for slot in reading.slots.tolist()]
            return replace(reading, partials=self._placed_there(partials, chosen, kernel_for))
        if partials.sketches is None:
            return reading
        stretches = _stretches(partials.sketches, partials.offsets)
        for row, slot in enumerate(reading.slots.tolist()):
            portion, tensor = self.spread.portions[slot], tensors[place_of[slot]]
            if portion is not None:
                stretches[row] = sketch_of_part(tensor, *self._runs_of(slot, portion, tensor), prod(portion.shape))
        return replace(reading, partials=_with_sketches(partials, stretches))

    def _placed_there(
        self, partials: Any, chosen: list[tuple[int, torch.Tensor]], kernel_for: Callable[[str], Kernel]
    ) -> Any:
        """Sketches by the places in the whole are taken on the device, too, where its kernel can."""
        rows: list[int] = []
        places: list[Places] = []
        for row, (slot, tensor) in enumerate(chosen):
            portion = self.spread.portions[slot]
            if portion is not None:
                found = places_of(*self._runs_of(slot, portion, tensor), prod(portion.shape))
                if found is None:
                    return PlacedPartials(partials, rows, None)
                rows.append(row)
                places.append(found)
        sketch = getattr(kernel_for(chosen[0][1].device.type), "sketch_parts_on_device", None) if chosen else None
        wanted = bool(partials.want & Want.SKETCH)
        sketches = sketch([chosen[row][1].detach() for row in rows], places) if sketch and wanted else None
        return PlacedPartials(partials, rows, sketches)

    def _runs_of(self, slot: int, portion: Portion, tensor: torch.Tensor) -> Runs:
        if not tensor.numel():
            return 0, np.empty(0, np.int64)
        runs = self._runs.get(slot)
        if runs is None:
            runs = self._runs[slot] = portion.runs()
        return runs


@dataclass(frozen=True, slots=True)
class PlacedPartials:
    """Partial values on a device. Where they are of parts, their sketches were taken by the places there, which is of
    no use to anybody: those of `sketches` take their place, or there are none."""

    partials: Any
    rows: list[int]  # which of them are of parts
    sketches: Any

    def to_host(self) -> Partials:
        partials: Partials = self.partials.to_host()
        placed: Partials | None = None if self.sketches is None else self.sketches.to_host()
        if placed is None or placed.sketches is None or partials.sketches is None:
            return replace(partials, sketches=None)
        stretches = _stretches(partials.sketches, partials.offsets)
        for row, stretch in zip(self.rows, _stretches(placed.sketches, placed.offsets)):
            stretches[row] = stretch
        return _with_sketches(partials, stretches)


def _stretches(sketches: Floats, offsets: NDArray[np.int64]) -> list[Floats]:
    return [sketches[begin:end] for begin, end in pairwise(offsets.tolist())]


def _with_sketches(partials: Partials, stretches: list[Floats]) -> Partials:
    offsets = np.cumsum([0, *map(len, stretches)], dtype=np.int64)
    return replace(partials, sketches=np.concatenate([np.empty(0), *stretches]), offsets=offsets)


def list_of(
    slots: NDArray[np.int64], references: list[ref[torch.Tensor]], of_gradients: bool, spread: Spread | None
) -> TensorList:
    if spread is None or all(spread.portions[slot] is None for slot in slots.tolist()):
        return TensorList(slots, references, of_gradients)
    return SpreadList(slots, references, of_gradients, spread=spread)
