"""All ranks' layers in one table, and where in it each rank's tensors belong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import offsets_of
from undertow.probe.distributed.portions import Ints, Portion
from undertow.probe.distributed.rank_messages import LayerFacts, Roster, SlotFacts
from undertow.probe.watched_layers import SlotLayout
from undertow.schema import Layer, LayerTable


@dataclass(frozen=True, slots=True)
class Unions:
    portions: Ints  # those that are made of others
    pieces: Ints  # of all of them, end to end
    starts: Ints  # where those of each begin

    @classmethod
    def of(cls, portions_of_slot: Mapping[int, Sequence[tuple[int, Portion]]]) -> Unions:
        """From the portions of slots, by their numbers."""
        found: dict[int, list[int]] = {}
        for portions in portions_of_slot.values():
            numbers = [number for number, _ in portions]
            for place, pieces in _made_of(tuple(block for _, block in portions)):
                found[numbers[place]] = [numbers[piece] for piece in pieces]
        begins = np.cumsum([0, *map(len, found.values())], dtype=np.int64)
        return cls(
            np.array(list(found), np.int64), np.array(list(chain(*found.values())), np.int64), begins[: len(found)]
        )


@lru_cache(maxsize=1024)  # most layers of a model are cut in one of few ways
def _made_of(blocks: tuple[Portion, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Which blocks are filled by smaller ones, and by which; those that fill it are not filled by others."""
    found: dict[int, tuple[int, ...]] = {}
    by_volume = sorted(range(len(blocks)), key=lambda place: blocks[place].volume)
    for rank, place in enumerate(by_volume):
        pieces = tuple(one for one in by_volume[:rank] if one not in found and blocks[one].lies_in(blocks[place]))
        if len(pieces) > 1 and sum(blocks[one].volume for one in pieces) == blocks[place].volume:
            found[place] = pieces
    return tuple(found.items())


@dataclass(slots=True)
class RankSlots:
    """One rank's slots: the slot of the whole, and which portion of it (equal numbers are equal portions)."""

    device: str
    is_sharded: bool  # any of them
    slots: Ints
    portions: Ints
    held: NDArray[np.bool_]  # False where this rank's portion is empty: what it says of such a tensor counts last


@dataclass(frozen=True, slots=True)
class Holding:
    """Who holds which portions of what: of whole tensors, or of the blocks that some ranks make together."""

    layout: SlotLayout
    by_rank: dict[int, RankSlots]
    blocks: tuple[Portion, ...]  # which part of its tensor each portion is
    counts: Ints  # how many elements make each slot complete; -1 where portions of it overlap, and none do
    unions: Unions
    own: Roster | None  # of the head; those of the others are not kept


class RankLayout:
    """Seen from one of them, the head, which the others send to. Its own facts count before theirs."""

    def __init__(self, earlier: LayerTable, head: int = 0) -> None:
        self.head = head
        self._layers: list[Layer] = list(earlier)
        self._id_of = {layer.path: layer.id for layer in earlier}
        self._slot_of: dict[str, int] = {}
        self.slot_facts: list[SlotFacts] = []  # of the first rank that has named it
        self._portion_of: dict[tuple[int, Portion], int] = {}  # by slot and block
        self.by_rank: dict[int, RankSlots] = {}
        self.own: Roster | None = None
        self.own_ids: Ints = np.empty(0, np.int64)  # layer ids of the head → those of the table
        self.prefixes: dict[int, str] = {}  # of ranks that hold other models under the same names
        self.layout = self._make_layout()
        self.version = 0
        self._known: Holding | None = None

    @property
    def table(self) -> LayerTable:
        return LayerTable(tuple(self._layers))

    @property
    def holding(self) -> Holding:
        """Of the whole tensors.

        Shards do not overlap, but those that were joined on their way can, where copies of them are cut otherwise.
        """
        if self._known is None:
            held, sizes, portions = self.held, self.layout.sizes, tuple(self._portion_of)
            volumes = np.array([block.volume for _, block in portions], np.float64)
            slots = self.slots
            too_much = np.bincount(slots[held], volumes[held], len(sizes)) > sizes
            crowded: dict[int, list[tuple[int, Portion]]] = {}
            for portion in held[too_much[slots[held]]].tolist():
                slot, block = portions[portion]
                crowded.setdefault(slot, []).append((portion, block))
            unions = Unions.of(crowded)
            volumes[unions.portions] = 0
            overlapping = np.bincount(slots[held], volumes[held], len(sizes)) > sizes
            blocks = tuple(block for _, block in portions)
            counts = np.where(overlapping, -1, sizes)
            self._known = Holding(self.layout, self.by_rank, blocks, counts, unions, self.own)
        return self._known

    @property
    def slots(self) -> Ints:
        """Of each portion."""
        return np.array([slot for slot, _ in self._portion_of], np.int64)

    @property
    def held(self) -> Ints:
        """The portions that some rank holds now."""
        different = {id(rank_slots.portions): rank_slots.portions for rank_slots in self.by_rank.values()}
        return np.unique(np.concatenate(list(different.values())))

    def enter(self, roster: Roster) -> None:
        """Take in a rank's layers, or what has changed about them."""
        rank, prefix = roster.rank, self.prefixes.get(roster.rank, "")
        behind = 1 + max((layer.order for layer in self._layers if layer.order is not None), default=-1)
        ids = [self._layer(facts, rank, prefix, behind) for facts in roster.layers]
        if rank == self.head:
            self.own, self.own_ids = roster, np.array(ids, np.int64)
        slots = np.array([self._slot(facts, prefix) for facts in roster.slots], np.int64)
        held_here = zip(slots.tolist(), (facts.block for facts in roster.slots))
        portions = np.array([self._portion_of.setdefault(one, len(self._portion_of)) for one in held_here], np.int64)
        first = self.by_rank.get(self.head)
        if first is not None:  # nearly always the same: one copy for thousands of ranks
            slots = first.slots if np.array_equal(slots, first.slots) else slots
            portions = first.portions if np.array_equal(portions, first.portions) else portions
        is_sharded = any(facts.is_sharded for facts in roster.slots)
        held = np.array([facts.block.volume > 0 for facts in roster.slots], np.bool_)
        self.by_rank[rank] = RankSlots(roster.device, is_sharded, slots, portions, held)
        self.layout, self._known = self._make_layout(), None
        self.version += 1

    def facts(self) -> dict[str, Any]:
        """Of the first rank that has any: what `NewLayers` says about optimizers and devices."""
        devices = sorted({rank_slots.device for rank_slots in self.by_rank.values()} - {""})
        return {"optimizers": [] if self.own is None else self.own.optimizers, "device": ", ".join(devices)}

    def _layer(self, facts: LayerFacts, rank: int, prefix: str, behind: int) -> int:
        path = prefix + facts.path
        fields = {name: getattr(facts, name) for name in facts.__struct_fields__ if name != "path"}
        known = self._id_of.get(path)
        if known is None:
            fields["group"] = prefix + facts.group if prefix and facts.group else facts.group
            if rank != self.head and facts.order is not None:  # behind what the ranks before it execute
                fields["order"] = behind + facts.order
            known = self._id_of[path] = len(self._layers)
            self._layers.append(Layer(path, id=known, **fields))
        elif rank == self.head:
            self._layers[known] = Layer(path, id=known, **fields)
        return known

    def _slot(self, facts: SlotFacts, prefix: str) -> int:
        path = prefix + facts.path
        slot = self._slot_of.get(path)
        if slot is None:
            slot = self._slot_of[path] = len(self.slot_facts)
            self.slot_facts.append(msgspec.structs.replace(facts, path=path))
        return slot

    def _make_layout(self) -> SlotLayout:
        parameters = [layer.id for layer in self._layers if not layer.is_module]
        modules = [layer.id for layer in self._layers if layer.is_module]
        row = {layer_id: place for place, layer_id in enumerate(parameters)}
        sizes = np.array([prod(facts.block.shape) for facts in self.slot_facts], np.int64)
        return SlotLayout(
            np.array(parameters, np.int32),
            np.array([row[self._id_of[facts.path]] for facts in self.slot_facts], np.int64),
            sizes,
            offsets_of(sizes),
            np.array(modules, np.int32),
        )
