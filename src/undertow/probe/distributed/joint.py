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
from undertow.probe.distributed.merging import Gathered
from undertow.probe.distributed.portions import Portion
from undertow.probe.distributed.rank_layout import RankLayout
from undertow.probe.distributed.rank_messages import Measured, Part, Roster, SlotFacts
from undertow.probe.distributed.whole_frame import Merged, micro_of
from undertow.probe.watched_layers import SlotLayout

_NONE = np.empty(0, np.int32)


class Joint:
    """What these ranks hold together, as if it were one rank: its slots are the joined blocks."""

    def __init__(self, ranks: RankLayout, apart: frozenset[str] = frozenset()) -> None:
        """`apart` are paths of tensors whose portions are not joined."""
        self.version, self.apart = ranks.version, apart
        joined, place = _joined(ranks, apart)
        facts = ranks.facts()
        layers = [facts_of(layer) for layer in ranks.table]
        self.roster = Roster(ranks.head, layers, joined, facts["optimizers"], facts["device"])
        size = np.array([prod(one.block.shape) for one in joined], np.int64)
        by_rank = ranks.by_rank.items()
        self.holding = replace(
            ranks.holding,
            layout=SlotLayout(_NONE, np.empty(0, np.int64), size, offsets_of(size), _NONE),
            by_rank={rank: replace(rank_slots, slots=place[rank_slots.portions]) for rank, rank_slots in by_rank},
            counts=np.array([one.block.volume for one in joined], np.int64),
        )

    def part(self, parts: Sequence[Part], witness: NDArray[np.bool_] | None) -> Part:
        """`parts` are those of this frame, the head's first."""
        merged = Merged(parts, self.holding)
        told = {kind: _told(gathered, witness) for kind, gathered in merged.kinds.items()}
        state, carried, optimizer = merged.flags
        return msgspec.structs.replace(
            parts[0],
            exposed=merged.exposed,
            state=state,
            carried=carried,
            optimizer=optimizer,
            kinds={kind: measured for kind, measured in told.items() if measured},
            micro=[_told(gathered, witness) for gathered in micro_of(parts, self.holding)],
            has_gradient=merged.has_gradient,
            stepped_as_they_were=merged.stepped_as_they_were,
            before_is_previous=merged.before_is_previous,
            ranks=merged.ranks,
            losses=merged.losses,
            bad=sorted(merged.bad),
        )


def _told(gathered: Gathered, witness: NDArray[np.bool_] | None) -> list[Measured]:
    measured = measured_of(gathered.reading(), witness)
    for one in measured:
        if not np.isnan(gathered.distance[one.slots]).all():
            one.distance, one.farthest = gathered.distance[one.slots], gathered.farthest[one.slots]
    return measured + gathered.unsummed()


def _joined(ranks: RankLayout, apart: frozenset[str]) -> tuple[list[SlotFacts], NDArray[np.int64]]:
    """The blocks, and the block of each portion."""
    holding, slots = ranks.holding, ranks.slots
    unions = holding.unions
    pieces = dict(zip(unions.portions.tolist(), unions.pieces[unions.starts].tolist()))
    whole_of_slot: dict[int, list[int]] = {}  # portions that are not made of others
    for portion in ranks.held.tolist():
        portions = whole_of_slot.setdefault(int(slots[portion]), [])
        if portion not in pieces:
            portions.append(portion)
    joined: list[SlotFacts] = []
    place = np.zeros(len(holding.blocks), np.int64)
    for slot, portions in whole_of_slot.items():
        facts, first = ranks.slot_facts[slot], len(joined)
        blocks = [holding.blocks[portion] for portion in portions]
        together = None if facts.path in apart else _together(blocks)
        joined += [msgspec.structs.replace(facts, block=one) for one in ([together] if together else blocks)]
        place[portions] = first if together else np.arange(first, len(joined))
    for portion, piece in pieces.items():  # compared there, and not added
        place[portion] = place[piece]
    return joined, place


def _together(blocks: Sequence[Portion]) -> Portion | None:
    """The block that they make; None where they make none, because something between them is held elsewhere.

    Portions of a tensor are equal or have nothing in common, so that counting elements tells.
    """
    solid = [one for one in blocks if one.volume]
    if len(solid) < 2:
        return (solid or blocks)[0]
    begin = tuple(map(min, zip(*(one.begin for one in solid))))
    end = tuple(map(max, zip(*(one.end for one in solid))))
    whole = Portion(solid[0].shape, begin, tuple(last - first for first, last in zip(begin, end)))
    return whole if whole.volume == sum(one.volume for one in solid) else None
