"""The parts of a rank and of those that send to it as one part, for the rank that it sends to.

Shards that together are a block are added up, so that the part is no longer than one of them; replicas are compared,
and what is passed on is the first one, and how far the farthest is from it.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import offsets_of
from undertow.probe.distributed.contribution import facts_of, measured_of
from undertow.probe.distributed.merging import Gathered, gather
from undertow.probe.distributed.messages import Measured, Part, Roster, SlotFacts
from undertow.probe.distributed.portions import Portion
from undertow.probe.distributed.rank_layout import RankLayout
from undertow.probe.distributed.whole_frame import flags_of, losses_of, micro_of, stepped_of
from undertow.probe.watched_layers import SlotLayout

_NONE = np.empty(0, np.int32)


class Joint:
    """What these ranks hold together, as if it were one rank: a `Holding` whose slots are the joined blocks."""

    def __init__(self, ranks: RankLayout, apart: frozenset[str] = frozenset()) -> None:
        """`apart` are paths of tensors whose portions are not joined."""
        self.version, self.apart = ranks.version, apart
        self.portions = ranks.portions
        self.unions = ranks.unions
        self.own = ranks.own
        self.block = ranks.block
        joined, place, size = _joined(ranks, apart)
        self.roster = Roster(
            ranks.head,
            [facts_of(layer) for layer in ranks.table],
            joined,
            [] if ranks.own is None else ranks.own.optimizers,
            str(ranks.facts()["device"]),
        )
        self.counts = np.array([prod(facts.extent) for facts in joined], np.int64)
        self.layout = SlotLayout(_NONE, np.empty(0, np.int64), size, offsets_of(size), _NONE)
        self.by_rank = {
            rank: replace(rank_slots, slots=place[rank_slots.portions]) for rank, rank_slots in ranks.by_rank.items()
        }

    def part(self, parts: Sequence[Part], witness: NDArray[np.bool_] | None) -> Part:
        """`parts` are those of this frame, the head's first."""
        exposed, flags = flags_of(parts, self)
        stepped = stepped_of(parts, self)
        kinds = {kind: gather(parts, kind, self) for kind in ("gradients", "weights_before", "weights")}
        if stepped is not None:
            kinds["stepped"] = stepped
        told = {kind: _told(gathered, witness) for kind, gathered in kinds.items()}
        used = kinds["gradients"] if stepped is None else stepped
        bad = {*used.comparison.bad, *kinds["weights"].comparison.bad, *(rank for part in parts for rank in part.bad)}
        return msgspec.structs.replace(
            parts[0],
            exposed=exposed,
            state=flags[0],
            carried=flags[1],
            optimizer=flags[2],
            kinds={kind: measured for kind, measured in told.items() if measured},
            micro=[_told(gathered, witness) for gathered in micro_of(parts, self)],
            has_gradient=any(part.has_gradient for part in parts),
            stepped_as_they_were=stepped is None,
            before_is_previous=all(part.before_is_previous for part in parts if "weights" in part.kinds),
            ranks=sum(part.ranks for part in parts),
            losses=losses_of(parts),
            bad=sorted(bad),
        )


def _told(gathered: Gathered, witness: NDArray[np.bool_] | None) -> list[Measured]:
    measured = measured_of(gathered.reading(), witness)
    apart = gathered.comparison
    for one in measured:
        if not np.isnan(apart.distance[one.slots]).all():
            one.distance, one.farthest = apart.distance[one.slots], apart.farthest[one.slots]
    return measured + gathered.unsummed()


def _joined(ranks: RankLayout, apart: frozenset[str]) -> tuple[list[SlotFacts], NDArray[np.int64], NDArray[np.int64]]:
    """The blocks, the block of each portion, and the size of the whole tensor of each block."""
    of_slot: dict[int, list[tuple[int, SlotFacts]]] = {}
    for portion in ranks.held.tolist():
        slot, facts = ranks.described(portion)
        of_slot.setdefault(slot, []).append((portion, facts))
    pieces = {
        int(portion): int(ranks.unions.pieces[start])
        for portion, start in zip(ranks.unions.portions, ranks.unions.starts)
    }
    joined: list[SlotFacts] = []
    place = np.zeros(ranks.portions, np.int64)
    for portions in of_slot.values():
        whole = [(portion, facts) for portion, facts in portions if portion not in pieces]
        is_apart = whole[0][1].path in apart
        together = None if is_apart else _together([facts for _, facts in whole])
        for portion, facts in whole:
            if together is None or not joined or joined[-1] is not together:
                joined.append(facts if together is None else together)
            place[portion] = len(joined) - 1
    for portion, piece in pieces.items():  # compared there, and not added
        place[portion] = place[piece]
    size = np.array([prod(facts.shape) for facts in joined], np.int64)
    return joined, place, size


def _together(portions: Sequence[SlotFacts]) -> SlotFacts | None:
    """The block that they make; None where they make none, because something between them is held elsewhere.

    Portions of a tensor are equal or have nothing in common, so that counting elements tells.
    """
    solid = [one for one in portions if 0 not in one.extent]
    if len(solid) < 2:
        return (solid or portions)[0]
    begin = tuple(map(min, zip(*(one.begin for one in solid))))
    end = tuple(map(max, zip(*(Portion(one.shape, one.begin, one.extent).end for one in solid))))
    extent = tuple(last - first for first, last in zip(begin, end))
    if prod(extent) != sum(prod(one.extent) for one in solid):
        return None
    return msgspec.structs.replace(solid[0], begin=begin, extent=extent)
