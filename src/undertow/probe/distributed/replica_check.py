"""Two ranks have a plain tensor under the same name: the same one twice, or two different ones?

Replicas begin alike, or are given the same gradients. Parts of a model that was cut into stages by hand may have the
same names, too, and share neither.
"""

from math import prod

import numpy as np
from numpy.typing import NDArray

from undertow.probe.distributed.rank_messages import Part, Roster, SlotFacts

_ALIKE = 1e-3  # relative distance
_EVIDENCE = ("weights_before", "weights", "stepped", "gradients")


def are_replicas(first: Roster, of_first: Part, second: Roster, of_second: Part) -> bool:
    """True, too, where nothing speaks against it."""
    if any(slot.wrapped for slot in second.slots):
        return True
    there = {slot.path: place for place, slot in enumerate(second.slots) if not slot.is_sharded}
    pairs = [
        (place, there[slot.path])
        for place, slot in enumerate(first.slots)
        if not slot.is_sharded and slot.path in there and second.slots[there[slot.path]].block.shape == slot.block.shape
    ]
    shown = False
    for kind in _EVIDENCE:
        mine, theirs = _folds(first.slots, of_first, kind), _folds(second.slots, of_second, kind)
        known = [(mine[one], theirs[other]) for one, other in pairs if one in mine and other in theirs]
        known = [(one, other) for one, other in known if np.any(one) or np.any(other)]
        if known:
            shown = True
            alike = sum(_distance(one, other) < _ALIKE for one, other in known)
            if 2 * alike >= len(known):
                return True
    return not shown


def _distance(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    length = float(np.linalg.norm(one.astype(np.float64)))
    return float(np.linalg.norm(one.astype(np.float64) - other)) / length if length > 0 else np.inf


def _folds(slots: list[SlotFacts], part: Part, kind: str) -> dict[int, NDArray[np.float32]]:
    found: dict[int, NDArray[np.float32]] = {}
    for measured in part.kinds.get(kind, ()):
        places = measured.slots.tolist()
        folded = measured.folded(np.array([prod(slots[slot].block.shape) for slot in places], np.int64))
        if folded is not None:
            found |= dict(zip(places, folded))
    return found
