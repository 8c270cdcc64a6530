"""Any span of a run in about as many rows as a picture has columns, from the zoom pyramid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.store.layout import ZOOM_LEVELS
from undertow.store.overlay import find_layers
from undertow.store.row_index import Integers, RowTable
from undertow.store.segment import Segment

LevelTables = Mapping[int, RowTable]  # frames per row → rows; level 1 is the frames themselves
_LEVELS = (1, *ZOOM_LEVELS)
_FIRST_VALUE = 6  # place of `minimum` among the columns of a zoom segment; mean, maximum, infinite, nan follow
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Window:
    """Rows of consecutive frames; every array after `last_steps` and `times` is (rows × layers)."""

    steps: Integers  # first step of each row
    last_steps: Integers
    times: NDArray[np.float64]  # of the first frame of each row
    minimum: NDArray[np.float32]  # of the finite values; NaN where there are none
    mean: NDArray[np.float32]
    maximum: NDArray[np.float32]
    nonfinite: NDArray[np.int32]  # infinite values
    nan: NDArray[np.int32]  # NaN: not measured, or measured as NaN (the quantity `…_nonfinite_count` tells which)
    level: int  # frames per row that were read


@dataclass(frozen=True, slots=True)
class Pick:
    """Chosen rows of one set of layers, of several levels, in order of sequence and without overlap."""

    level: Integers
    place: Integers  # in the table of that level
    sequence: Integers
    last_sequence: Integers
    frames: Integers

    @classmethod
    def of(cls, level: int, table: RowTable, inside: NDArray[np.bool_]) -> Pick:
        place = np.flatnonzero(inside)
        return cls(
            np.full(len(place), level), place, table.sequence[place], table.last_sequence[place], table.frames[place]
        )

    def take(self, which: NDArray[np.bool_] | Integers) -> Pick:
        return Pick(
            self.level[which], self.place[which], self.sequence[which], self.last_sequence[which], self.frames[which]
        )

    def join(self, other: Pick) -> Pick:
        both = Pick(
            np.concatenate([self.level, other.level]),
            np.concatenate([self.place, other.place]),
            np.concatenate([self.sequence, other.sequence]),
            np.concatenate([self.last_sequence, other.last_sequence]),
            np.concatenate([self.frames, other.frames]),
        )
        return both.take(np.argsort(both.sequence, kind="stable"))

    def covers(self, sequence: Integers) -> NDArray[np.bool_]:
        """Which of these frames lie within a chosen row."""
        if not len(self.sequence):
            return np.zeros(len(sequence), np.bool_)
        row = np.searchsorted(self.sequence, sequence, "right") - 1
        return (row >= 0) & (sequence <= self.last_sequence[np.maximum(row, 0)])

    def frames_within(self, first: Integers, last: Integers) -> Integers:
        """How many frames the chosen rows that begin between these sequence numbers account for."""
        total = np.concatenate([[0], np.cumsum(self.frames)])
        return total[np.searchsorted(self.sequence, last, "right")] - total[np.searchsorted(self.sequence, first)]


def pick_rows(tables: LevelTables, level: int, span: tuple[int, int]) -> Pick:
    """Rows that together hold every frame of the span once, at `level` wherever that is possible."""
    inside = {
        number: Pick.of(number, table, (table.step >= span[0]) & (table.last_step <= span[1]))
        for number, table in tables.items()
    }
    nothing = Pick.of(1, RowTable.of([]), np.zeros(0, np.bool_))
    pick = inside.get(level, nothing)
    for coarser in (number for number in _LEVELS if number > level):
        # Rows at this level that a disk budget took away live on in the coarser ones.
        rows = inside.get(coarser, nothing)
        rows = rows.take(pick.frames_within(rows.sequence, rows.last_sequence) < rows.frames)
        pick = pick.take(~rows.covers(pick.sequence)).join(rows)
    for finer in (number for number in reversed(_LEVELS) if number < level):
        # Both ends of the span, and what has not been summed up yet.
        rows = inside.get(finer, nothing)
        pick = pick.join(rows.take(~pick.covers(rows.sequence)))
    return pick


def count_rows(tables: LevelTables, span: tuple[int, int]) -> dict[int, int]:
    """How many rows of each level touch the span."""
    return {level: int(((t.step <= span[1]) & (t.last_step >= span[0])).sum()) for level, t in tables.items()}


def level_for(counts: Mapping[int, int], columns: int) -> int:
    """The coarsest level that has enough rows."""
    return next((number for number in reversed(_LEVELS) if counts.get(number, 0) >= columns), 1)


def summarize_window(
    tracks: Sequence[LevelTables], quantity: str, layer_ids: Integers, span: tuple[int, int], columns: int
) -> Window:
    counts = [count_rows(tables, span) for tables in tracks]
    # The set of layers with most frames leads: it sets the level and where rows begin.
    lead = max(range(len(tracks)), key=lambda i: sum(n * level for level, n in counts[i].items()), default=None)
    if lead is None:
        return _Sums(0, len(layer_ids)).window(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), 1)
    level = level_for(counts[lead], columns)
    picks = [pick_rows(tables, level, span) for tables in tracks]
    merged = max(1, len(picks[lead].sequence) // columns)
    edges = picks[lead].sequence[::merged]
    sums = _Sums(len(edges), len(layer_ids))
    steps = np.full(len(edges), np.iinfo(np.int64).max)
    last_steps = np.full(len(edges), np.iinfo(np.int64).min)
    times = np.full(len(edges), np.nan)
    if not len(edges):
        tracks = []
    for tables, pick in zip(tracks, picks, strict=False):
        bucket = np.maximum(np.searchsorted(edges, pick.sequence, "right") - 1, 0)
        for number in np.unique(pick.level).tolist():
            chosen = pick.level == number
            rows = tables[number].take(pick.place[chosen])
            target = bucket[chosen]
            np.minimum.at(steps, target, rows.step)
            np.maximum.at(last_steps, target, rows.last_step)
            np.fmin.at(times, target, rows.time)
            for segment, places in rows.by_segment():
                for start in range(0, len(places), _ROWS_AT_ONCE):
                    part = places[start : start + _ROWS_AT_ONCE]
                    sums.add(segment, quantity, rows.row[part], rows.frames[part], target[part], layer_ids)
    return sums.window(steps, last_steps, times, level)


class _Sums:
    """What the rows of each bucket add up to."""

    def __init__(self, buckets: int, layers: int) -> None:
        shape = (buckets, layers)
        self._minimum = np.full(shape, np.nan, np.float32)
        self._maximum = np.full(shape, np.nan, np.float32)
        self._total = np.zeros(shape, np.float64)
        self._finite = np.zeros(shape, np.int32)
        self._infinite = np.zeros(shape, np.int32)
        self._nan = np.zeros(shape, np.int32)

    def add(
        self, segment: Segment, quantity: str, rows: Integers, frames: Integers, target: Integers, layer_ids: Integers
    ) -> None:
        """`target` is the bucket of each row, in increasing order."""
        facts = segment.facts
        source, here = find_layers(facts.layer_ids, layer_ids)
        if quantity not in facts.quantities or not len(here):
            return
        number = facts.quantities.index(quantity)
        low, high = int(source.min()), int(source.max()) + 1
        every = source - low
        with np.errstate(all="ignore"):  # NaN is expected, and a damaged file may hold any number
            if facts.level == 1:
                values = segment.read(3 + number, rows, slice(low, high))[:, every]
                finite = np.isfinite(values)
                nan = np.isnan(values).astype(np.int32)
                infinite = (~finite).astype(np.int32) - nan
                minimum = maximum = np.where(finite, values, np.float32(np.nan))
                total = np.where(finite, values, 0).astype(np.float64)
            else:
                cells = slice(number * facts.cells + low, number * facts.cells + high)
                columns = (segment.read(_FIRST_VALUE + place, rows, cells)[:, every] for place in range(5))
                minimum, mean, maximum, infinite, nan = columns
                count = frames[:, None] - infinite.astype(np.int32) - nan
                total = np.where(count > 0, mean, 0).astype(np.float64) * count
                infinite, nan = infinite.astype(np.int32), nan.astype(np.int32)
            starts = np.flatnonzero(np.diff(target, prepend=-1))
            cells_of = np.ix_(target[starts], here)
            _merge(np.fmin, self._minimum, cells_of, minimum, starts)
            _merge(np.fmax, self._maximum, cells_of, maximum, starts)
            _merge(np.add, self._total, cells_of, total, starts)
            _merge(np.add, self._infinite, cells_of, infinite, starts)
            _merge(np.add, self._nan, cells_of, nan, starts)
            finite_count = frames[:, None] - infinite - nan
            _merge(np.add, self._finite, cells_of, finite_count.astype(np.int32), starts)

    def window(self, steps: Integers, last_steps: Integers, times: NDArray[np.float64], level: int) -> Window:
        with np.errstate(all="ignore"):
            mean = (self._total / self._finite).astype(np.float32)
        return Window(steps, last_steps, times, self._minimum, mean, self._maximum, self._infinite, self._nan, level)


def _merge(
    combine: np.ufunc, out: NDArray[Any], cells: tuple[Any, ...], values: NDArray[Any], starts: Integers
) -> None:
    out[cells] = combine(out[cells], combine.reduceat(values, starts, axis=0))
