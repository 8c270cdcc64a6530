"""Does a finding point at the line? The places it names beside the lines that the author of the program has marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NEAR = 1  # lines beside the marked one that count as right
WIDEST = 8  # lines of a place that count: one that covers half a file points at nothing
AMONG = 3

Place = Sequence[Any]  # file, line, end_line, role
Line = Sequence[Any]  # file, line


@dataclass(frozen=True, slots=True)
class Pointing:
    """One right finding of a case whose fault has a line."""

    case: str
    places: Sequence[Place]
    lines: Sequence[Line]

    @property
    def is_first_right(self) -> bool:
        return any(_is_right(place, self.lines) for place in self.places[:1])

    @property
    def is_among_first(self) -> bool:
        return any(_is_right(place, self.lines) for place in self.places[:AMONG])

    @property
    def is_first_wrong(self) -> bool:
        """A place is named, and it is another one; naming none is no lie."""
        return bool(self.places) and not self.is_first_right


def _is_right(place: Place, lines: Sequence[Line]) -> bool:
    file, first, last = place[0], place[1], min(place[2], place[1] + WIDEST)
    return any(file == path and first - NEAR <= line <= last + NEAR for path, line in lines)


def pointings(sick: dict[str, list[Any]]) -> list[Pointing]:
    """Of verdicts by case: the first right alarm of each run, where the lines of the fault are known."""
    return [
        Pointing(name, right["source"], verdict.fault_lines)
        for name, group in sick.items()
        for verdict in group
        if verdict.fault_lines and (right := verdict.first_right) is not None and "source" in right
    ]
