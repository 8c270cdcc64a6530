"""Reading the two Arrow messages at the head of a segment, trusting none of their numbers.

An Arrow stream is a schema message and then record batches; each message is a small flatbuffer.
Only what a segment needs is read here, and every offset and length is checked against the bytes
at hand before it is used, so that a damaged or hostile file costs an exception and nothing else.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONTINUATION = b"\xff\xff\xff\xff"
END_OF_STREAM = CONTINUATION + b"\x00\x00\x00\x00"
PREFIX_SIZE = 8  # the continuation marker and the length of the flatbuffer

_HEADER_SCHEMA = 1
_HEADER_RECORD_BATCH = 3


class DamagedMessageError(Exception):
    """The bytes are no Arrow message of the kind a segment has."""


@dataclass(frozen=True, slots=True)
class SchemaMessage:
    size: int  # of the whole message, prefix included
    names: tuple[str, ...]
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class BatchMessage:
    header_size: int  # prefix and flatbuffer; the body follows
    body_size: int
    rows: int
    buffers: NDArray[np.int64]  # (buffers × 2): offset in the body, length in bytes


class _Table:
    """A flatbuffer table at a position; fields by number, absent ones are None."""

    __slots__ = ("_bytes", "_position", "_vtable", "_vtable_size")

    def __init__(self, data: bytes, position: int) -> None:
        self._bytes = data
        self._position = position
        self._vtable = position - _number("<i", data, position)
        self._vtable_size = _number("<H", data, self._vtable)

    def place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot + 2 > self._vtable_size:
            return None
        offset = _number("<H", self._bytes, self._vtable + slot)
        return self._position + offset if offset else None

    def number(self, field: int, kind: str) -> int:
        place = self.place(field)
        return 0 if place is None else _number(kind, self._bytes, place)

    def table(self, field: int) -> _Table:
        place = self.place(field)
        if place is None:
            raise DamagedMessageError("a part is missing")
        return _Table(self._bytes, place + _number("<I", self._bytes, place))

    def vector(self, field: int, item_size: int) -> tuple[int, int]:
        """Where the items begin, and how many there are: all of them lie within the bytes."""
        place = self.place(field)
        if place is None:
            return 0, 0
        start = place + _number("<I", self._bytes, place)
        count = _number("<I", self._bytes, start)
        if start + 4 + count * item_size > len(self._bytes):
            raise DamagedMessageError(f"a list claims {count} items, more than the header holds")
        return start + 4, count

    def tables(self, field: int) -> list[_Table]:
        start, count = self.vector(field, 4)
        places = range(start, start + 4 * count, 4)
        return [_Table(self._bytes, place + _number("<I", self._bytes, place)) for place in places]

    def text(self, field: int) -> str:
        start, size = self.vector(field, 1)
        return self._bytes[start : start + size].decode("utf-8", "replace")


def _number(kind: str, data: bytes, position: int) -> int:
    if position < 0:
        raise DamagedMessageError("an offset points outside of the header")
    try:
        return struct.unpack_from(kind, data, position)[0]
    except struct.error:
        raise DamagedMessageError("an offset points outside of the header") from None


def flatbuffer_size(prefix: bytes) -> int:
    """The size that the eight bytes before a flatbuffer claim for it; zero at the end of a stream."""
    if len(prefix) < PREFIX_SIZE or prefix[:4] != CONTINUATION:
        raise DamagedMessageError("no Arrow message begins where one should")
    size = _number("<i", prefix, 4)
    if size < 0 or size % 8:
        raise DamagedMessageError(f"a header claims a size of {size} bytes")
    return size


def _header(flatbuffer: bytes, kind: int, what: str) -> tuple[_Table, _Table]:
    message = _Table(flatbuffer, _number("<I", flatbuffer, 0))
    if message.number(1, "<B") != kind:
        raise DamagedMessageError(f"the message is no {what}")
    return message, message.table(2)


def read_schema(flatbuffer: bytes) -> SchemaMessage:
    _, schema = _header(flatbuffer, _HEADER_SCHEMA, "schema")
    fields, pairs = schema.tables(1), schema.tables(2)
    texts = [*((one, 0) for one in fields), *((one, place) for one in pairs for place in (0, 1))]
    # Parts may be named by many: a small header that says the same text a million times would fill the memory.
    if sum(one.vector(place, 1)[1] for one, place in texts) > len(flatbuffer):
        raise DamagedMessageError("its names are longer than the header")
    names = tuple(field.text(0) for field in fields)
    metadata = {pair.text(0): pair.text(1) for pair in pairs}
    return SchemaMessage(PREFIX_SIZE + len(flatbuffer), names, metadata)


def read_batch(flatbuffer: bytes) -> BatchMessage:
    message, batch = _header(flatbuffer, _HEADER_RECORD_BATCH, "record batch")
    if batch.place(3) is not None:
        raise DamagedMessageError("the record batch is compressed")
    start, count = batch.vector(2, 16)
    buffers = np.frombuffer(flatbuffer, "<i8", 2 * count, start).reshape(count, 2)
    body_size = message.number(3, "<q")
    rows = batch.number(0, "<q")
    if body_size <= 0 or rows <= 0:
        raise DamagedMessageError(f"a record batch claims {rows} rows in {body_size} bytes")
    return BatchMessage(PREFIX_SIZE + len(flatbuffer), body_size, rows, buffers)
