"""A track: the rows of one stream for one set of layers, cut into segment files of bounded size."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.store.catalogue import segment_name
from undertow.store.layout import ABSENT, SCALARS, SegmentFacts
from undertow.store.segment import DamagedSegmentError, Segment, SegmentReplacedError
from undertow.store.segment_writer import SegmentWriter, write_packed
from undertow.store.template import Template
from undertow.store.zoom_writer import Pyramid, Summary

SCALAR_ROWS = 4096  # frames per scalars segment; packed when full, so they cost 8 bytes a number


@dataclass(slots=True)
class Closed:
    """A finished segment file, as the disk budget sees it."""

    path: Path
    stream: str
    level: int
    first_sequence: int
    rows: int
    size: int
    every: int = 1


class Files:
    """Numbers and sizes of the segment files of a run; told of every byte."""

    def __init__(self, segments: Path, zoom: Path, segment_bytes: int) -> None:
        self.segments = segments
        self.zoom = zoom
        self.segment_bytes = segment_bytes
        self.next_number: dict[tuple[str, int], int] = {}
        self.bytes_written = 0
        self.bytes_on_disk = 0
        self.on_closed: Callable[[Closed], None] = lambda closed: None

    def begin(self, template: Template) -> SegmentWriter:
        key = (template.facts.stream, template.facts.level)
        number = self.next_number.get(key, 0)
        folder = self.segments if template.facts.level == 1 else self.zoom
        self.next_number[key] = number + 1  # even if it fails: what it leaves must not stand in the way
        segment = SegmentWriter(folder / segment_name(*key, number), template)
        self.wrote(segment.size)
        return segment

    def wrote(self, size: int) -> None:
        self.bytes_written += size
        self.bytes_on_disk += size


class RowFile:
    """Appends rows of one layout, beginning a new segment when the last one is full or beyond repair."""

    def __init__(self, files: Files, facts: SegmentFacts, most_rows: int = 1 << 16) -> None:
        self.template = Template(facts)
        self._files = files
        self._most_rows = most_rows
        self._segment: SegmentWriter | None = None
        self._first_sequence = 0

    def append(self) -> None:
        """Write the row that the template holds. Raises OSError, and then nothing was written."""
        segment = self._segment
        if segment is not None and (
            segment.broken or segment.size >= self._files.segment_bytes or segment.rows >= self._most_rows
        ):
            self.close()
            segment = None
        if segment is None:
            segment = self._segment = self._files.begin(self.template)
            self._first_sequence = int(self.template.arrays[0][0])
        segment.append()
        self._files.wrote(self.template.stride)

    def close(self) -> None:
        segment, self._segment = self._segment, None
        if segment is None:
            return
        before = segment.size
        segment.close()
        self._files.wrote(segment.size - before)
        size = segment.size
        facts = self.template.facts
        if facts.stream == SCALARS and segment.rows > 1:
            size = self._pack(segment.path, facts, size)
        self._files.on_closed(
            Closed(segment.path, facts.stream, facts.level, self._first_sequence, segment.rows, size, facts.every)
        )

    def _pack(self, path: Path, facts: SegmentFacts, size: int) -> int:
        """Scalar rows are small beside their Arrow headers: put them all under one."""
        with contextlib.suppress(OSError, DamagedSegmentError, SegmentReplacedError):
            packed = rewrite(path, facts, slice(None))
            self._files.bytes_written += packed
            self._files.bytes_on_disk += packed - size
            return packed
        return size


class Track:
    """The rows of one stream for one set of layers, with their zoom levels."""

    def __init__(self, files: Files, facts: SegmentFacts, *, zoomed: bool) -> None:
        self._files = files
        self._facts = facts
        self._rows = RowFile(files, facts)
        self._key = self._rows.template.key()
        self._values = self._rows.template.values()
        self._pyramid = Pyramid((len(facts.quantities), facts.cells), self._write_zoom) if zoomed else None
        self._zoom: dict[int, RowFile] = {}

    def append(self, sequence: int, step: int, time: float, values: NDArray[np.float32]) -> None:
        self._key[0] = (sequence, step, time)
        self._values[...] = values
        self._rows.append()

    def summarize(self, sequence: int, step: int, time: float, values: NDArray[np.float32]) -> None:
        """Called once the frame is committed."""
        if self._pyramid is not None:
            self._pyramid.add(sequence, step, time, values)

    def _write_zoom(self, level: int, row: Summary) -> None:
        if level not in self._zoom:
            self._zoom[level] = RowFile(self._files, msgspec.structs.replace(self._facts, level=level))
        row.fill(self._zoom[level].template)
        # A zoom row that does not fit on the disk is no loss: readers fall back to the level below.
        with contextlib.suppress(OSError):
            self._zoom[level].append()

    def close(self) -> None:
        if self._pyramid is not None:
            self._pyramid.flush()
        self._rows.close()
        for rows in self._zoom.values():
            rows.close()


class ScalarTrack:
    """The scalars of every frame. Its row is written last and makes the frame count."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._places: dict[str, int] = {}
        self._rows: RowFile | None = None

    def append(self, sequence: int, step: int, time: float, scalars: dict[str, float]) -> None:
        if self._rows is None or not self._places.keys() >= scalars.keys():
            self.close()
            names = [*self._places, *(name for name in scalars if name not in self._places)]
            self._rows = RowFile(self._files, SegmentFacts(SCALARS, quantities=tuple(names)), SCALAR_ROWS)
            self._places = {name: place for place, name in enumerate(names)}
            self._key = self._rows.template.key()
            self._values = self._rows.template.values()
        self._key[0] = (sequence, step, time)
        self._values[...] = ABSENT
        for name, value in scalars.items():
            self._values[self._places[name]] = value
        self._rows.append()

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None


def rewrite(path: Path, facts: SegmentFacts, kept: slice) -> int:
    """Replace a finished segment by a packed one with some of its rows; returns the new size."""
    segment = Segment(path)
    rows, _ = segment.index()
    rows = rows[kept]
    columns: list[NDArray[Any]] = [segment.read(place, rows) for place in range(segment.column_count)]
    return write_packed(path, facts, columns)
