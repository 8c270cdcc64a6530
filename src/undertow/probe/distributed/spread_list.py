"""Lists of tensors of which this rank holds a part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.partials import Partials, offsets_of
from undertow.measure.shards import sketch_of_part
from undertow.probe.distributed.portions import Portion, Spread, Term, is_spread, local_of, term_of
from undertow.probe.readings import Reading
from undertow.probe.tensor_list import TensorList

Runs = tuple[int, NDArray[np.int64]]


@dataclass(slots=True, eq=False)
class SpreadList(TensorList):
    """What is read are the local parts; their sketches are taken by the places in the whole."""

    asked: bool = True  # the native kernel would read the wrappers
    is_spread: bool = True
    spread: Spread = field(default_factory=lambda: Spread((), frozenset()))
    _runs: dict[int, Runs] = field(default_factory=dict[int, Runs])

    def tensors(self) -> list[torch.Tensor]:
        return [local_of(tensor) for tensor in TensorList.tensors(self)]

    def placed(self, readings: list[Reading], tensors: Sequence[torch.Tensor]) -> list[Reading]:
        terms = self._terms() if self.of_gradients else {}
        for reading in readings:
            reading.terms = {slot: terms[slot] for slot in reading.slots.tolist() if slot in terms} or None
        return [self._placed(reading, tensors) for reading in readings]

    def _terms(self) -> dict[int, Term]:
        found = zip(self.slots.tolist(), TensorList.tensors(self))
        terms = {slot: term_of(tensor) for slot, tensor in found if is_spread(tensor)}
        return {slot: term for slot, term in terms.items() if term is not None}

    def _placed(self, reading: Reading, tensors: Sequence[torch.Tensor]) -> Reading:
        partials: Any = reading.partials
        if not isinstance(partials, Partials):  # still on its device
            return replace(reading, partials=_WithoutSketch(partials))
        if partials.sketches is None:
            return reading
        place_of = {slot: place for place, slot in enumerate(self.slots.tolist())}
        sizes: list[int] = []
        sketches: list[NDArray[np.float64]] = []
        for row, slot in enumerate(reading.slots.tolist()):
            portion = self.spread.portions[slot]
            if portion is None:
                sizes.append(int(partials.offsets[row + 1] - partials.offsets[row]))
                sketches.append(partials.sketches[partials.offsets[row] : partials.offsets[row + 1]])
                continue
            count = prod(portion.shape)
            sizes.append(count)
            sketches.append(sketch_of_part(tensors[place_of[slot]], *self._runs_of(slot, portion), count))
        offsets = offsets_of(np.array(sizes, np.int64))
        joined = np.concatenate(sketches) if sketches else np.empty(0)
        return replace(reading, partials=replace(partials, sketches=joined, offsets=offsets))

    def _runs_of(self, slot: int, portion: Portion) -> Runs:
        runs = self._runs.get(slot)
        if runs is None:
            runs = self._runs[slot] = portion.runs()
        return runs


@dataclass(frozen=True, slots=True)
class _WithoutSketch:
    """Partial values on a device whose sketches were taken by the places in this part: of no use to anybody."""

    partials: Any

    def to_host(self) -> Partials:
        return replace(self.partials.to_host(), sketches=None)


def list_of(
    slots: NDArray[np.int64], tensors: list[torch.Tensor], of_gradients: bool, spread: Spread | None
) -> TensorList:
    if spread is None or all(spread.portions[slot] is None for slot in slots.tolist()):
        return TensorList(slots, tensors, of_gradients)
    return SpreadList(slots, tensors, of_gradients, spread=spread)
