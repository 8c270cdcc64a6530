"""Where the rows of a stream lie, over all its segments, and at which place of the time axis they belong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.store.layout import FRAMES, LAST_SEQUENCE, LAST_STEP, SEQUENCE, STEP, TIME
from undertow.store.segment import Rows, Segment

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowTable:
    """The good rows of some segments in order of sequence: their key, and where to find the rest."""

    segments: Sequence[Segment]
    segment: Integers  # which of `segments`
    row: Rows  # which row of it
    sequence: Integers
    step: Integers
    time: NDArray[np.float64]
    last_sequence: Integers
    last_step: Integers
    frames: Integers

    def __len__(self) -> int:
        return len(self.sequence)

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> RowTable:
        parts = [segment.index() for segment in segments]
        zoomed = bool(segments) and segments[0].facts.level > 1

        def column(place: int, dtype: str) -> Any:
            pieces: list[NDArray[Any]] = [key[place] for _, key in parts]
            return np.concatenate(pieces or [np.empty(0, dtype)])

        sequence = column(SEQUENCE, "<i8")
        step = column(STEP, "<i8")
        counts = [len(rows) for rows, _ in parts]
        table = cls(
            segments=segments,
            segment=np.repeat(np.arange(len(parts)), counts),
            row=np.concatenate([rows for rows, _ in parts] or [np.empty(0, np.int64)]),
            sequence=sequence,
            step=step,
            time=column(TIME, "<f8"),
            last_sequence=column(LAST_SEQUENCE, "<i8") if zoomed else sequence,
            last_step=column(LAST_STEP, "<i8") if zoomed else step,
            frames=column(FRAMES, "<i8") if zoomed else np.broadcast_to(np.int64(1), len(sequence)),
        )
        if len(table) > 1 and not (table.sequence[1:] > table.last_sequence[:-1]).all():
            table = table.take(np.argsort(table.sequence, kind="stable"))
        return table

    def take(self, which: NDArray[np.bool_] | Integers) -> RowTable:
        return RowTable(
            self.segments,
            self.segment[which],
            self.row[which],
            self.sequence[which],
            self.step[which],
            self.time[which],
            self.last_sequence[which],
            self.last_step[which],
            self.frames[which],
        )

    def between(self, first: int, last: int) -> tuple[int, int]:
        """Which rows begin from one sequence number to another, both included."""
        return int(np.searchsorted(self.sequence, first)), int(np.searchsorted(self.sequence, last, "right"))

    def by_segment(self) -> Iterator[tuple[Segment, Integers]]:
        """Each segment with the places of its rows in this table, in order."""
        order = np.argsort(self.segment, kind="stable")
        starts = np.flatnonzero(np.diff(self.segment[order], prepend=-1))
        for places in np.split(order, starts[1:]) if len(order) else []:
            yield self.segments[int(self.segment[places[0]])], places


class Timeline:
    """The frames of a run. A frame counts once its row in the scalars stream, written last, is there."""

    def __init__(self, table: RowTable) -> None:
        if len(table) > 1 and not (np.diff(table.sequence) > 0).all():
            table = table.take(np.unique(table.sequence, return_index=True)[1])
        self.table = table
        self.sequence = table.sequence
        if len(table) < 2 or (np.diff(table.step) > 0).all():
            self.steps: Integers = table.step
            self.position: Integers = np.arange(len(table))
        else:
            self.steps, self.position = np.unique(table.step, return_inverse=True)

    def until(self, sequence: int) -> Timeline:
        """As it was when this was the last frame."""
        return Timeline(self.table.take(self.sequence <= sequence))

    def committed(self, table: RowTable) -> tuple[RowTable, Integers]:
        """The rows that belong to a frame, and that frame's number on this timeline."""
        if not len(self.sequence):
            return table.take(np.empty(0, np.int64)), np.empty(0, np.int64)
        frame = np.minimum(np.searchsorted(self.sequence, table.sequence), len(self.sequence) - 1)
        found = self.sequence[frame] == table.sequence
        if found.all():
            return table, frame
        return table.take(found), frame[found]


def passes(table: RowTable, position: Integers) -> Iterator[tuple[Segment, Rows, Integers]]:
    """Rows in an order in which later frames of a step come after earlier ones, and no step twice in one portion.

    Nearly always that is one portion for each segment; steps with several frames make more.
    """
    if not len(table):
        return
    order = np.argsort(position, kind="stable")
    begins = np.flatnonzero(np.diff(position[order], prepend=position[order[0]] - 1))
    occurrence = np.empty(len(order), np.int64)
    lengths = np.diff(begins, append=len(order))
    occurrence[order] = np.arange(len(order)) - np.repeat(begins, lengths)
    grouping = np.lexsort((table.row, table.segment, occurrence))
    keys = occurrence[grouping] * len(table.segments) + table.segment[grouping]
    starts = np.flatnonzero(np.diff(keys))
    for places in np.split(grouping, starts + 1):
        yield table.segments[int(table.segment[places[0]])], table.row[places], position[places]
