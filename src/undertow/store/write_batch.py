"""Frames that are written together: their keys as columns, their blocks by stream and set of layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.schema import Block, Frame
from undertow.store.layout import KEY

_STRING, _FLOAT = {str}, {float}


class Group:
    """The blocks of one stream and set of layers, and which frames of the batch they belong to."""

    __slots__ = ("_values", "blocks", "first", "places")

    def __init__(self, first: Block) -> None:
        self.first = first
        self.places: list[int] = []
        self.blocks: list[NDArray[np.float32]] = []
        self._values: NDArray[np.float32] | None = None

    def values(self) -> NDArray[np.float32]:
        """(frames × quantities × cells)."""
        if self._values is None:
            together = self.blocks[0] if len(self.blocks) == 1 else np.concatenate(self.blocks)
            self._values = together.reshape(len(self.blocks), *self.blocks[0].shape)
        return self._values

    def without(self, lost: set[int]) -> Group:
        if lost.isdisjoint(self.places):
            return self
        rest = Group(self.first)
        for place, block in zip(self.places, self.blocks):
            if place not in lost:
                rest.places.append(place)
                rest.blocks.append(block)
        return rest


class Batch:
    def __init__(self, frames: Sequence[Frame], groups: Iterable[Group]) -> None:
        self.frames = frames
        self.groups = groups

    def number(self, sequences: Sequence[int]) -> None:
        self._keys = np.array([(n, frame.step, frame.time) for n, frame in zip(sequences, self.frames)], KEY)

    def keys(self, places: Sequence[int]) -> NDArray[Any]:
        """Of some of the frames, in order."""
        return self._keys if len(places) == len(self._keys) else self._keys[np.array(places, np.int64)]


def batches(frames: Sequence[Frame], most_groups: int, most_frames: int = 256) -> Iterator[Batch]:
    """All frames, in batches of bounded size."""
    start = 0
    groups: dict[tuple[str, bytes], Group] = {}
    # Frames of one layout share the array of layer ids: its identity saves comparing the ids themselves.
    same: dict[tuple[str, int], Group] = {}
    for place, frame in enumerate(frames):
        if place > start and (place - start == most_frames or len(groups) + len(frame.blocks) > most_groups):
            yield Batch(frames[start:place], groups.values())
            start, groups, same = place, {}, {}
        for block in frame.blocks.values():
            identity = (block.stream, id(block.layer_ids))
            group = same.get(identity)
            if group is None:
                group = groups.setdefault((block.stream, block.layer_ids.tobytes()), Group(block))
                same[identity] = group
            group.places.append(place - start)
            group.blocks.append(block.values)
    if start < len(frames):
        yield Batch(frames[start:], groups.values())


def plain(scalars: Mapping[str, Any]) -> Mapping[str, float]:
    """Names that UTF-8 can hold, and numbers; what is none of these is left out."""
    if (
        set(map(type, scalars)) <= _STRING
        and set(map(type, scalars.values())) <= _FLOAT
        and all(map(str.isascii, scalars))
    ):
        return scalars
    found: dict[str, float] = {}
    for name, value in scalars.items():
        try:
            found[str(name).encode("utf-8", "replace").decode()] = float(value)
        except (TypeError, ValueError):
            continue
        except OverflowError:
            found[str(name)] = math.inf if value > 0 else -math.inf
    return found
