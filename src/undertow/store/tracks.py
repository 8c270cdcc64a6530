"""A track: the rows of one stream for one set of layers, cut into segment files of bounded size."""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.store.layout import ABSENT, SCALARS, SegmentFacts, facts_of_scalars
from undertow.store.row_buffer import RowBuffer
from undertow.store.segment import DamagedSegmentError, Segment, SegmentReplacedError
from undertow.store.segment_catalogue import segment_name
from undertow.store.segment_writer import SegmentWriter, write_packed
from undertow.store.template import Template
from undertow.store.zoom_writer import Pyramid, Summaries

SCALAR_ROWS = 4096  # frames per scalars segment; packed when full, so they cost 8 bytes a number
BUFFER_BYTES = 256 << 10  # of rows encoded side by side and written at once


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


class Written(NamedTuple):
    """How many of the rows are on disk, the first ones, and why not all."""

    rows: int
    error: Exception | None = None


class RowFile:
    """Appends rows of one layout, beginning a new segment when the last one is full or beyond repair."""

    def __init__(self, files: Files, facts: SegmentFacts, most_rows: int = 1 << 16) -> None:
        self.template = Template(facts)
        self._files = files
        self._most_rows = most_rows
        self._full = files.segment_bytes + self.template.stride - 1  # the row that reaches the limit is the last
        self._most_at_once = max(1, BUFFER_BYTES // self.template.stride)
        self._buffer = RowBuffer(self.template, 1)
        self._segment: SegmentWriter | None = None
        self._first_sequence = 0

    def append(self, keys: NDArray[Any], *values: NDArray[Any]) -> Written:
        """Write rows, given as the parts of the template with an index for the row before."""
        count, done = len(keys), 0
        try:
            while done < count:
                segment, room = self._open_segment(keys, done)
                rows = min(count - done, room, self._most_at_once)
                data = self._encode(rows, done, (keys, *values))
                before = segment.rows
                try:
                    segment.append(data)
                finally:
                    done += segment.rows - before
                    self._files.wrote((segment.rows - before) * self.template.stride)
        except Exception as error:  # whatever it is, the rows before it are on disk
            return Written(done, error)
        return Written(done)

    def _encode(self, rows: int, first: int, parts: tuple[NDArray[Any], ...]) -> memoryview:
        if rows > self._buffer.rows:
            self._buffer = RowBuffer(self.template, min(self._most_at_once, 2 * rows))
        for target, part in zip(self._buffer.targets, parts):
            target[:rows] = part[first : first + rows]
        return self._buffer.data(rows)

    def _open_segment(self, keys: NDArray[Any], first: int) -> tuple[SegmentWriter, int]:
        """A segment, and how many rows it has room for."""
        segment = self._segment
        if segment is not None:
            room = min((self._full - segment.size) // self.template.stride, self._most_rows - segment.rows)
            if room > 0 and not segment.broken:
                return segment, room
            self.close()
        segment = self._segment = self._files.begin(self.template)
        self._first_sequence = int(keys["sequence"][first])
        return segment, max(1, min((self._full - segment.size) // self.template.stride, self._most_rows))

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
        self._pyramid = Pyramid(len(facts.quantities) * facts.cells, self._write_zoom) if zoomed else None
        self._zoom: dict[int, RowFile] = {}

    def append(self, keys: NDArray[Any], values: NDArray[np.float32]) -> Written:
        """Values are (rows × quantities × cells)."""
        return self._rows.append(keys, values)

    def summarize(self, keys: NDArray[Any], values: NDArray[np.float32]) -> None:
        """Called once the frames are committed."""
        if self._pyramid is not None:
            self._pyramid.add(keys, values)

    def _write_zoom(self, level: int, rows: Summaries) -> None:
        if level not in self._zoom:
            self._zoom[level] = RowFile(self._files, msgspec.structs.replace(self._facts, level=level))
        # A zoom row that does not fit on the disk is no loss: readers fall back to the level below.
        self._zoom[level].append(*rows.parts())

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
        self._names: dict[str, None] = {}  # in the order of the columns
        self._rows: RowFile | None = None

    def append(self, keys: NDArray[Any], scalars: Sequence[Mapping[str, float]]) -> Written:
        done = 0
        while done < len(scalars):
            rows = self._covering(scalars[done])
            end = done + 1
            while end < len(scalars) and scalars[end].keys() <= self._names.keys():
                end += 1
            absent = itertools.repeat(ABSENT)
            values = [list(map(one.get, self._names, absent)) for one in scalars[done:end]]
            written, error = rows.append(keys[done:end], np.array(values, "<f8"))
            done += written
            if error is not None:
                return Written(done, error)
        return Written(done)

    def _covering(self, scalars: Mapping[str, float]) -> RowFile:
        """Rows that have a place for every one of these names."""
        if self._rows is None or not scalars.keys() <= self._names.keys():
            self.close()
            self._names.update(dict.fromkeys(scalars))
            self._rows = RowFile(self._files, facts_of_scalars(tuple(self._names)), SCALAR_ROWS)
        return self._rows

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
