"""All ranks' layers in one table, and where in it each rank's tensors belong."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import offsets_of
from undertow.probe.catalogue import Layout
from undertow.probe.distributed.messages import LayerFacts, Roster, SlotFacts
from undertow.probe.distributed.portions import Portion
from undertow.schema.layers import Layer, LayerTable

Ints = NDArray[np.int64]
Key = tuple[int, tuple[int, ...], tuple[int, ...]]  # slot, begin and extent of a portion


@dataclass(slots=True)
class Berth:
    """One rank's slots: the slot of the whole, and which portion of it (equal numbers are equal portions)."""

    device: str
    is_sharded: bool  # any of them
    slots: Ints
    portions: Ints
    held: NDArray[np.bool_]  # False where this rank's portion is empty: what it says of such a tensor counts last


class Crew:
    def __init__(self, earlier: LayerTable) -> None:
        self._layers: list[Layer] = list(earlier)
        self._id_of = {layer.path: layer.id for layer in earlier}
        self._slot_of: dict[str, int] = {}
        self._shapes: list[tuple[int, ...]] = []
        self._sizes: list[int] = []
        self._slot_layers: list[int] = []
        self._portion_of: dict[Key, int] = {}
        self._portions: list[Key] = []
        self.berths: dict[int, Berth] = {}
        self.own: Roster | None = None  # of this rank; those of the others are not kept
        self.own_ids: Ints = np.empty(0, np.int64)  # layer ids of this rank → those of the table
        self.prefixes: dict[int, str] = {}  # of ranks that hold other models under the same names
        self.layout = self._make_layout()
        self.version = 0

    @property
    def table(self) -> LayerTable:
        return LayerTable(tuple(self._layers))

    @property
    def portions(self) -> int:
        return len(self._portion_of)

    def block(self, portion: int) -> Portion:
        """Which part of its tensor a portion is."""
        slot, begin, extent = self._portions[portion]
        return Portion(self._shapes[slot], begin, extent)

    def enter(self, roster: Roster) -> None:
        """Take in a rank's layers, or what has changed about them."""
        rank, prefix = roster.rank, self.prefixes.get(roster.rank, "")
        behind = 1 + max((layer.order for layer in self._layers if layer.order is not None), default=-1)
        ids = [self._layer(facts, rank, prefix, behind) for facts in roster.layers]
        if rank == 0:
            self.own, self.own_ids = roster, np.array(ids, np.int64)
        slots = np.array([self._slot(facts, prefix) for facts in roster.slots], np.int64)
        portions = np.array(list(map(self._portion, slots.tolist(), roster.slots)), np.int64)
        first = self.berths.get(0)
        if first is not None:  # nearly always the same: one copy for thousands of ranks
            slots = first.slots if np.array_equal(slots, first.slots) else slots
            portions = first.portions if np.array_equal(portions, first.portions) else portions
        is_sharded = any(facts.is_sharded for facts in roster.slots)
        held = np.array([0 not in facts.extent for facts in roster.slots], np.bool_)
        self.berths[rank] = Berth(roster.device, is_sharded, slots, portions, held)
        self.layout = self._make_layout()
        self.version += 1

    def facts(self) -> dict[str, Any]:
        """Of the first rank that has any: what `NewLayers` tells of optimizers and devices."""
        devices = sorted({berth.device for berth in self.berths.values()} - {""})
        return {
            "optimizers": [] if self.own is None else self.own.optimizers,
            "device": ", ".join(devices),
        }

    def _layer(self, facts: LayerFacts, rank: int, prefix: str, behind: int) -> int:
        path = prefix + facts.path
        fields = {name: getattr(facts, name) for name in facts.__struct_fields__ if name != "path"}
        known = self._id_of.get(path)
        if known is None:
            fields["group"] = prefix + facts.group if prefix and facts.group else facts.group
            if rank and facts.order is not None:  # behind what the ranks before it execute
                fields["order"] = behind + facts.order
            known = self._id_of[path] = len(self._layers)
            self._layers.append(Layer(path, id=known, **fields))
        elif rank == 0:
            self._layers[known] = Layer(path, id=known, **fields)
        return known

    def _slot(self, facts: SlotFacts, prefix: str) -> int:
        path = prefix + facts.path
        slot = self._slot_of.get(path)
        if slot is None:
            slot = self._slot_of[path] = len(self._sizes)
            self._shapes.append(facts.shape)
            self._sizes.append(prod(facts.shape))
            self._slot_layers.append(self._id_of[path])
        return slot

    def _portion(self, slot: int, facts: SlotFacts) -> int:
        key = (slot, facts.begin, facts.extent)
        known = self._portion_of.get(key)
        if known is None:
            known = self._portion_of[key] = len(self._portions)
            self._portions.append(key)
        return known

    def _make_layout(self) -> Layout:
        parameters = [layer.id for layer in self._layers if not layer.is_module]
        modules = [layer.id for layer in self._layers if layer.is_module]
        row = {layer_id: place for place, layer_id in enumerate(parameters)}
        sizes = np.array(self._sizes, np.int64)
        return Layout(
            np.array(parameters, np.int32),
            np.array([row[layer_id] for layer_id in self._slot_layers], np.int64),
            sizes,
            offsets_of(sizes),
            np.array(modules, np.int32),
        )
