"""The readings of all ranks as those of one: shards add up, replicas are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.measure.kernels import choose
from undertow.measure.kernels.interface import Want
from undertow.measure.partials import EXPONENT_BUCKETS, Moment, Partials, offsets_of
from undertow.measure.shards import sketch_of_part
from undertow.probe.distributed.contribution import chosen
from undertow.probe.distributed.portions import Ints, Portion, Summand
from undertow.probe.distributed.rank_layout import Holding
from undertow.probe.distributed.rank_messages import FOLD_WIDTH, Measured, Part
from undertow.probe.readings import Reading

Floats = NDArray[np.float64]
_NONFINITE = [Moment.NAN, Moment.POSITIVE_INFINITY, Moment.NEGATIVE_INFINITY]
_COUNTS = [Moment.COUNT, *_NONFINITE, Moment.ZERO]


class Gathered:
    """Adds up one kind of reading, rank by rank, the lowest first."""

    def __init__(self, ranks: Holding) -> None:
        self._ranks = ranks
        self._layout = ranks.layout
        self._seen = np.zeros(len(ranks.blocks), np.bool_)
        self._folds: NDArray[np.float32] | None = None  # of each portion, from the rank that sent it first
        self._finite = np.zeros(len(ranks.blocks), np.bool_)
        self._norms: Floats = np.zeros(len(ranks.blocks))
        self._first_rank = np.full(len(ranks.blocks), -1, np.int64)
        self._unions = ranks.unions
        self._is_union = np.zeros(len(ranks.blocks), np.bool_)
        self._is_union[self._unions.portions] = True
        self._read = np.zeros(len(ranks.layout.sizes), np.bool_)
        self._whole: Partials | None = None
        self._terms: dict[tuple[int, int], dict[int, Summand]] = {}  # by slot and portion, then by number
        # Replicas of each slot: how far the farthest is from the first, relative to its length, and whose it is.
        self.distance: Floats = np.full(len(ranks.layout.sizes), np.nan)  # NaN where there is only one
        self.farthest = np.full(len(ranks.layout.sizes), -1, np.int64)
        self.bad: set[int] = set()  # ranks of which a replica alone is not finite

    def add(self, rank: int, measured: Measured) -> None:
        rank_slots = self._ranks.by_rank[rank]
        for slot, term in measured.terms.items():
            terms = self._terms.setdefault((int(rank_slots.slots[slot]), int(rank_slots.portions[slot])), {})
            terms.setdefault(term.number, term)
        if not len(measured.slots):
            return
        slots, portions = rank_slots.slots[measured.slots], rank_slots.portions[measured.slots]
        if self._is_union.any():
            self._unite()
        fresh = ~(self._seen | self._is_union)[portions]
        finite = measured.moments[:, _NONFINITE].sum(axis=1) == 0
        own = np.zeros(len(slots))  # how far this rank itself is from the first
        again = np.flatnonzero(~fresh & self._seen[portions])
        if len(again):
            own[again] = self._compare(rank, slots, portions, measured, again, finite)
        if measured.distance is not None and measured.farthest is not None:
            # Those that send by way of this rank were compared with it: where it has parted itself, they seem to have.
            farther = measured.distance > 2 * np.nan_to_num(own, posinf=np.inf)
            self._note_farthest(slots[farther], measured.distance[farther], measured.farthest[farther])
        if fresh.any() and measured.folds is None:
            places = np.flatnonzero(fresh)
            self._seen[portions[places]] = True
            self._finite[portions[places]] = finite[places]
            self._first_rank[portions[places]] = rank
            self._norms[portions[places]] = np.sqrt(measured.moments[places, Moment.SUM_SQUARE])
            self._read[slots[places]] = True
            folded = measured.folded(self._layout.sizes[slots]) if len(self._ranks.by_rank) > 1 else None
            if folded is not None:  # somebody else may hold the same
                if self._folds is None:
                    self._folds = np.zeros((len(self._ranks.blocks), FOLD_WIDTH), np.float32)
                self._folds[portions[places]] = folded[places]
            while len(places):
                _, once = np.unique(slots[places], return_index=True)  # nearly always all of them
                self._sum(self._scattered(slots, places[once], measured))
                places = np.delete(places, once)

    def reading(self) -> list[Reading]:
        """What is known of all of it. Of a tensor with a shard missing only what is not finite is told."""
        for (slot, portion), terms in list(self._terms.items()):
            first = next(iter(terms.values()))
            if len(terms) == first.count:
                del self._terms[slot, portion]
                values = [term.values for term in terms.values() if term.values is not None]
                measured = measure_sum(values, self._ranks.blocks[portion])
                self._read[slot] = True
                self._sum(self._scattered(np.array([slot]), np.array([0]), measured))
        if self._whole is None:
            return []
        moments = self._whole.moments
        complete = self._read & (moments[:, Moment.COUNT] == self._ranks.counts)
        broken = self._read & ~complete & (moments[:, _NONFINITE].sum(axis=1) > 0)
        if broken.any():
            for moment in Moment:
                if moment not in _COUNTS:
                    moments[broken, moment] = np.nan
        told = complete | broken
        if told.all():
            return [Reading(np.arange(len(told)), self._whole)]
        some = np.flatnonzero(told)
        return [Reading(some, chosen(self._whole, some))] if len(some) else []

    def unsummed(self) -> list[Measured]:
        """Terms of sums to which other ranks hold the rest, after `reading`."""
        nothing = np.empty(0, np.int64), np.empty((0, len(Moment)))
        terms = [(slot, term) for (slot, _), terms in self._terms.items() for term in terms.values()]
        return [Measured(*nothing, terms={slot: term}) for slot, term in terms]

    # -- sums ---------------------------------------------------------------------------------------------

    def _sum(self, more: Partials) -> None:
        self._whole = more if self._whole is None else self._whole.merge(more)

    def _scattered(self, slots: Ints, places: Ints, measured: Measured) -> Partials:
        """These readings among those of all slots; the others are empty."""
        layout, here = self._layout, slots[places]
        if len(here) == len(slots) == len(layout.sizes) and np.array_equal(here, np.arange(len(here))):
            return Partials(measured.moments.copy(), measured.exponents, measured.sketches, layout.offsets)
        moments = np.zeros((len(layout.sizes), len(Moment)))
        moments[:, [Moment.MINIMUM, Moment.MAXIMUM]] = np.nan
        moments[here] = measured.moments[places]
        exponents = sketched = None
        if measured.exponents is not None:
            exponents = np.zeros((len(layout.sizes), EXPONENT_BUCKETS), np.int64)
            exponents[here] = measured.exponents[places]
        if measured.sketches is not None:
            sketched = np.zeros(int(layout.offsets[-1]))
            begins = offsets_of(layout.sizes[slots])
            for place, slot in zip(places.tolist(), here.tolist()):
                sketched[layout.stretch(slot)] = measured.sketches[begins[place] : begins[place + 1]]
        return Partials(moments, exponents, sketched, layout.offsets)

    def _unite(self) -> None:
        """What is made of portions that have come can be compared with them."""
        unions = self._unions
        complete = np.logical_and.reduceat(self._seen[unions.pieces], unions.starts)
        new = complete & ~self._seen[unions.portions]
        if new.any():
            made = unions.portions[new]
            self._seen[made] = True
            self._finite[made] = np.logical_and.reduceat(self._finite[unions.pieces], unions.starts)[new]
            self._norms[made] = np.sqrt(np.add.reduceat(self._norms[unions.pieces] ** 2, unions.starts)[new])
            self._first_rank[made] = self._first_rank[unions.pieces[unions.starts]][new]
            if self._folds is not None:
                self._folds[made] = np.add.reduceat(self._folds[unions.pieces], unions.starts)[new]

    # -- comparisons --------------------------------------------------------------------------------------

    def _compare(
        self, rank: int, slots: Ints, portions: Ints, measured: Measured, places: Ints, finite: NDArray[np.bool_]
    ) -> Floats:
        """The readings at these places against those that a lower rank sent of the same portions: how far apart."""
        folded = measured.folded(self._layout.sizes[slots])
        slots, portions, finite = slots[places], portions[places], finite[places]
        uneven = finite != self._finite[portions]
        for portion, is_finite in zip(portions[uneven].tolist(), finite[uneven].tolist()):
            self.bad.add(int(self._first_rank[portion]) if is_finite else rank)
        if folded is not None and self._folds is not None:
            first = self._folds[portions].astype(np.float64)
            apart = np.sqrt(np.square(folded[places].astype(np.float64) - first).sum(axis=1))
            length = np.sqrt(np.square(first).sum(axis=1))
        else:  # without sketches, the difference of the norms: no more than the norm of the difference
            length = self._norms[portions]
            apart = np.abs(np.sqrt(measured.moments[places, Moment.SUM_SQUARE]) - length)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(apart == 0, 0.0, apart / length)
        self._note_farthest(slots, distance, np.full(len(slots), rank))
        return distance

    def _note_farthest(self, slots: Ints, distance: Floats, ranks: Ints) -> None:
        before = self.distance[slots]
        farther = np.isnan(before) | (distance > before)
        self.distance[slots[farther]] = distance[farther]
        self.farthest[slots[farther]] = ranks[farther]


def gather(parts: Sequence[Part], ranks: Holding, of: Callable[[Part], Iterable[Measured]]) -> Gathered:
    """One kind of reading of all parts, which are in the order of their ranks."""
    gathered = Gathered(ranks)
    for part in parts:
        for measured in of(part):
            gathered.add(part.rank, measured)
    return gathered


def measure_sum(terms: Sequence[NDArray[Any]], block: Portion) -> Measured:
    """As if this block of the tensor had been measured after the sum. Small tensors only: see MOST_SUMMAND_ELEMENTS."""
    total = torch.from_numpy(np.add.reduce([term.astype(np.float64) for term in terms]))
    partials = choose("cpu").measure([total], Want.MOMENTS | Want.EXPONENTS)
    length, starts = block.runs()
    sketch = sketch_of_part(total, length, starts, prod(block.shape))
    return Measured(np.zeros(1, np.int64), partials.moments, partials.exponents, sketch)
