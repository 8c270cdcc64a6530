"""Which rows of a stream a window needs: those of a zoom level, and of finer ones only what it does not sum up.

A long run has a hundred thousand frames, and looking at the head of each takes longer than drawing the picture.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from undertow.store.row_index import RowTable, Timeline
from undertow.store.segment import Segment
from undertow.store.window import LevelTables, Pick, count_rows, pick_rows


class Levels:
    """One set of layers of a stream: its files at every zoom level, indexed when somebody needs them."""

    def __init__(self, segments: Mapping[int, Sequence[Segment]], timeline: Timeline) -> None:
        self._segments = {level: segments.get(level, []) for level in sorted({1, *segments}, reverse=True)}
        self._timeline = timeline
        self._whole: LevelTables | None = None

    def whole(self) -> LevelTables:
        """Every row there is."""
        if self._whole is None:
            self._whole = {level: self._table(level, parts) for level, parts in self._segments.items()}
        return self._whole

    def around(self, span: tuple[int, int], columns: int) -> LevelTables:
        """All that `summarize_window` picks from to show these steps in that many columns."""
        extents = {level: [part.extent() for part in parts] for level, parts in self._segments.items()}
        if self._whole is not None or not all(map(_in_order, extents.values())):
            return self.whole()  # in a damaged file, or one that was written in another order, ends tell nothing
        tables: dict[int, RowTable] = {}
        enough: int | None = None
        for level, parts in self._segments.items():
            wanted = self._touching(parts, span)
            if enough is not None:
                wanted = _not_summed_up(wanted, level, pick_rows(tables, enough, span))
            tables[level] = self._table(level, wanted)
            if enough is None and count_rows(tables, span)[level] >= columns:
                enough = level
        return tables

    def _table(self, level: int, segments: Sequence[Segment]) -> RowTable:
        table = RowTable.of(segments)
        return self._timeline.committed(table)[0] if level == 1 else table

    def _touching(self, segments: Sequence[Segment], span: tuple[int, int]) -> list[Segment]:
        """Those that may hold frames of these steps."""
        table = self._timeline.table
        inside = table.sequence[(table.step >= span[0]) & (table.step <= span[1])]
        if not len(inside):
            return []
        low, high = int(inside[0]), int(inside[-1])
        return [one for one in segments if one.extent()[0] <= high and one.extent()[1] >= low]


def _in_order(extents: Sequence[tuple[int, int]]) -> bool:
    ends = [end for extent in extents for end in extent]
    return ends == sorted(ends)


def _not_summed_up(segments: list[Segment], level: int, pick: Pick) -> list[Segment]:
    """Without those whose every frame is part of a row that was picked, if that can be told from numbers of rows."""
    if not len(pick.sequence):
        return segments
    first, last = int(pick.sequence[0]), int(pick.last_sequence[-1])
    inner = [one for one in segments if first < one.extent()[0] and one.extent()[1] < last]
    outer = [one for one in segments if one not in inner]
    rows = RowTable.of(outer)
    within = rows.frames[(rows.sequence >= first) & (rows.last_sequence <= last)]
    frames = level * sum(one.row_count for one in inner) + int(np.sum(within))
    return outer if frames == int(pick.frames.sum()) else segments
