"""Names for more rows than there is room for names: modules that hold them, as deep as fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

_ENOUGH = 0.2  # of the room: fewer labels than that say too little


@dataclass(frozen=True, slots=True)
class Label:
    """A name for the rows from `start` to before `end`."""

    text: str
    start: int
    end: int


def labels_of(paths: Sequence[str], most: int) -> list[Label]:
    """A label for each row if they are at most `most`, else for neighbours with a common beginning.

    Where that would leave few labels, as when all paths begin alike, some of the next deeper ones stand for all.
    """
    deeper = [Label(path, place, place + 1) for place, path in enumerate(paths)]
    if len(paths) <= most:
        return deeper
    deepest = min(8, max(path.count(".") for path in paths))
    for depth in range(deepest, 0, -1):
        groups = _runs(paths, depth)
        if len(groups) <= most:
            if len(groups) >= _ENOUGH * most:
                return groups
            break
        deeper = groups
    return deeper[:: -(-len(deeper) // max(1, most))]


def _runs(paths: Sequence[str], depth: int) -> list[Label]:
    found: list[Label] = []
    place = 0
    for text, members in groupby(paths, key=lambda path: ".".join(path.split(".")[:depth])):
        count = len(list(members))
        found.append(Label(text, place, place + count))
        place += count
    return found
