"""Portions of a tensor that are made of smaller ones which others hold: a copy that was joined on its way, beside the
shards of another copy. Such a portion is compared with its pieces, not added to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Box = tuple[tuple[int, ...], tuple[int, ...]]  # begin and extent


@dataclass(frozen=True, slots=True)
class Unions:
    portions: Ints  # those that are made of others
    pieces: Ints  # of all of them, end to end
    starts: Ints  # where those of each begin

    @classmethod
    def of(cls, boxes_of_slot: Mapping[int, Sequence[tuple[int, Box]]]) -> Unions:
        """From the portions of slots, with what they are."""
        found: dict[int, list[int]] = {}
        for portions in boxes_of_slot.values():
            numbers = [number for number, _ in portions]
            for place, pieces in _made_of(tuple(box for _, box in portions)):
                found[numbers[place]] = [numbers[piece] for piece in pieces]
        lengths = [len(pieces) for pieces in found.values()]
        return cls(
            np.array(list(found), np.int64),
            np.array([piece for pieces in found.values() for piece in pieces], np.int64),
            np.cumsum([0, *lengths])[:-1].astype(np.int64) if lengths else np.empty(0, np.int64),
        )


@lru_cache(maxsize=1024)  # most layers of a model are cut in one of few ways
def _made_of(boxes: tuple[Box, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Which boxes are filled by smaller ones, and by which; those that fill it are not filled by others."""
    found: dict[int, tuple[int, ...]] = {}
    by_volume = sorted(range(len(boxes)), key=lambda place: prod(boxes[place][1]))
    for rank, place in enumerate(by_volume):
        pieces = tuple(one for one in by_volume[:rank] if one not in found and _lies_in(boxes[one], boxes[place]))
        if len(pieces) > 1 and sum(prod(boxes[one][1]) for one in pieces) == prod(boxes[place][1]):
            found[place] = pieces
    return tuple(found.items())


def _lies_in(inner: Box, outer: Box) -> bool:
    within = (
        begin <= first and first + count <= begin + extent
        for begin, extent, first, count in zip(*outer, *inner, strict=True)
    )
    return 0 not in inner[1] and all(within)
