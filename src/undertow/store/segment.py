"""Reading one segment file: a header that is checked, and rows that are read when somebody wants them.

Nothing is kept open between calls, so a run of a thousand files needs no thousand handles, and a
file that the writer replaces (packed or thinned) is noticed by its inode. Nothing is mapped: a map
of a file that somebody cuts short kills the process.
"""

import os
import stat
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.store.arrow_messages import (
    END_OF_STREAM,
    PREFIX_SIZE,
    BatchMessage,
    DamagedMessageError,
    flatbuffer_size,
    read_batch,
    read_schema,
)
from undertow.store.layout import (
    LAST_SEQUENCE,
    METADATA_KEY,
    SEQUENCE,
    Column,
    SegmentFacts,
    columns_of,
    data_places,
    shared_names,
)
from undertow.store.scattered_reads import read_pieces

_FIRST_READ = 1 << 16
# A writer ends a segment at 65,536 rows or a few megabytes; a hole in a file costs nothing and can claim any size.
MOST_ROWS = 1 << 20
LARGEST_HEADER = 1 << 22  # bytes: the ids of half a million layers


class DamagedSegmentError(Exception):
    """The file is no segment that can be used; the message says why in words."""


class SegmentReplacedError(Exception):
    """The writer has put another file in this one's place: look again."""


Rows = NDArray[np.int64]


class Segment:
    """The rows of one file as of the moment it was opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _open(path) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DamagedSegmentError("it is not a regular file")
            self.size = status.st_size
            self.inode = status.st_ino
            if self.size == 0:
                raise SegmentReplacedError(str(path))  # just begun: nothing to see yet
            try:
                schema = _read_message(file, 0, self.size)
                if not schema:
                    raise DamagedSegmentError("it ends before its Arrow schema does")
                self.facts, self._columns = _parse_schema(schema)
                self._start = PREFIX_SIZE + len(schema)
                batch = _read_message(file, self._start, self.size)
                self.batches = 0
                if batch:
                    message, self._places = _parse_batch(schema, batch)
                    self.rows_per_batch = message.rows
                    self._header_size = message.header_size
                    self._stride = message.header_size + message.body_size
                    self.batches = (self.size - self._start) // self._stride
                    if self.row_count > MOST_ROWS:
                        raise DamagedSegmentError(f"its {self.size:,} bytes would be {self.row_count:,} rows")
            except DamagedMessageError as error:
                raise DamagedSegmentError(str(error)) from None
        self._index: list[NDArray[Any]] | None = None
        self._rows: Rows = np.empty(0, np.int64)
        self._extent: tuple[int, int] | None = None
        self.damaged_rows = 0

    @property
    def tail(self) -> int:
        """Bytes after the last whole row that are not the end marker: a torn write."""
        if not self.batches:
            return 0
        tail = self.size - self._start - self.batches * self._stride
        return 0 if tail in (0, len(END_OF_STREAM)) else tail

    @property
    def column_count(self) -> int:
        return len(self._columns)

    @property
    def row_count(self) -> int:
        """Good and damaged ones."""
        return self.batches * self.rows_per_batch if self.batches else 0

    @property
    def indexed_rows(self) -> int:
        """Rows whose keys are held."""
        return len(self._rows)

    def extent(self) -> tuple[int, int]:
        """The first and the last sequence number as they stand there, before anybody has checked them."""
        if self._extent is None:
            last = SEQUENCE if self.facts.level == 1 else LAST_SEQUENCE
            first_row, last_row = np.array([0]), np.array([self.row_count - 1])
            self._extent = int(self.read(SEQUENCE, first_row)[0]), int(self.read(last, last_row)[0])
        return self._extent

    def index(self) -> tuple[Rows, list[NDArray[Any]]]:
        """Numbers of the good rows, and the key columns (sequence, step, time, …) of those rows."""
        if self._index is None:
            count = 3 if self.facts.level == 1 else 6
            if not self.batches:
                self._index = [np.empty(0, column.dtype) for column in self._columns[:count]]
            else:
                good = self._intact_batches()
                every = np.arange(self.row_count).reshape(self.batches, -1)[good].reshape(-1)
                key = [self.read(place, every) for place in range(count)]
                kept = _in_order(key[SEQUENCE], key[LAST_SEQUENCE] if count == 6 else key[SEQUENCE])
                self._rows = every[kept]
                self._index = [column[kept] for column in key]
                self.damaged_rows = self.batches * self.rows_per_batch - len(self._rows)
        return self._rows, self._index

    def read(self, column: int, rows: Rows, cells: slice | None = None) -> NDArray[Any]:
        """A copy of some rows of a column; of a list column, optionally only some of its numbers."""
        facts = self._columns[column]
        first, last, _ = (cells or slice(None)).indices(1 if facts.size is None else facts.size)
        dtype = np.dtype(facts.dtype)
        batch, row = np.divmod(rows, self.rows_per_batch)
        places = batch * self._stride + row * facts.bytes_per_row
        places += self._start + self._header_size + self._places[column] + first * dtype.itemsize
        values = self._pieces(places, (last - first) * dtype.itemsize).view(dtype)
        return values[:, 0] if facts.size is None else values

    def _intact_batches(self) -> NDArray[np.bool_]:
        """Batches whose header is, as it must be, the same as the first one's."""
        good = np.empty(self.batches, np.bool_)
        model = self._pieces(np.array([self._start]), self._header_size)
        together = max(1, _FIRST_READ * 64 // self._header_size)
        for first in range(0, self.batches, together):
            numbers = np.arange(first, min(first + together, self.batches))
            headers = self._pieces(self._start + numbers * self._stride, self._header_size)
            good[numbers] = (headers == model).all(axis=1)
        return good

    def _pieces(self, places: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
        with _open(self.path) as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self.inode or status.st_size < self.size:
                raise SegmentReplacedError(str(self.path))
            try:
                return read_pieces(file.fileno(), places, size)
            except EOFError:
                raise SegmentReplacedError(str(self.path)) from None
            except OSError as error:
                raise DamagedSegmentError(f"it cannot be read ({error.strerror})") from None


def _open(path: Path) -> Any:
    try:
        # A pipe put in a segment's place must not block us.
        return open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except FileNotFoundError:
        raise SegmentReplacedError(str(path)) from None
    except OSError as error:
        raise DamagedSegmentError(f"it cannot be opened ({error.strerror})") from None


def _read_message(file: Any, position: int, size: int) -> bytes:
    """The flatbuffer of the message at a position; empty where the file ends before it is complete."""
    head: bytes = os.pread(file.fileno(), _FIRST_READ, position)
    if len(head) < PREFIX_SIZE or head[:PREFIX_SIZE] == END_OF_STREAM:
        return b""
    length = flatbuffer_size(head)
    if position + PREFIX_SIZE + length > size:
        return b""
    if length > LARGEST_HEADER:
        raise DamagedMessageError(f"a header claims a size of {length:,} bytes")
    if PREFIX_SIZE + length > len(head):
        head = os.pread(file.fileno(), PREFIX_SIZE + length, position)
    return head[PREFIX_SIZE : PREFIX_SIZE + length]


@lru_cache(maxsize=64)
def _parse_schema(flatbuffer: bytes) -> tuple[SegmentFacts, tuple[Column, ...]]:
    """Segments of one stream and layer set share these bytes, so a run's worth of them is parsed once."""
    schema = read_schema(flatbuffer)
    try:
        facts = msgspec.json.decode(schema.metadata[METADATA_KEY], type=SegmentFacts)
    except KeyError:
        raise DamagedMessageError("it is an Arrow stream, but not of Undertow") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedMessageError(f"its description cannot be read ({error})") from None
    facts = msgspec.structs.replace(facts, quantities=shared_names(facts.quantities))
    if facts.width < 1 or facts.level < 1 or facts.every < 1 or len(schema.names) != len(columns_of(facts)):
        raise DamagedMessageError("its description does not fit its columns")
    columns = columns_of(facts)
    if schema.names != tuple(column.name for column in columns):
        raise DamagedMessageError("its columns are not those of its description")
    return facts, columns


@lru_cache(maxsize=64)
def _parse_batch(schema: bytes, flatbuffer: bytes) -> tuple[BatchMessage, list[int]]:
    _, columns = _parse_schema(schema)
    message = read_batch(flatbuffer)
    return message, data_places(columns, message)


def _in_order(first: NDArray[np.int64], last: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows whose sequence lies between its neighbours': a flipped bit in one must not hide the others."""
    good = (first >= 0) & (last >= first)
    good[1:] &= first[1:] > last[:-1]
    good[:-1] &= last[:-1] < first[1:]
    highest = np.maximum.accumulate(np.where(good, last, -1))
    good[1:] &= first[1:] > highest[:-1]
    return good
