"""The bytes of a segment that never change, asked of nanoarrow once: schema and record-batch header.

Every record batch of a segment has the same number of rows (one while a run is written, all of
them once it is packed), hence the same header and the same size. A template holds one such batch
with its values left open; filling it in is a copy, writing it is one call.
"""

# nanoarrow comes without types; what it returns goes no further than this file.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import nanoarrow as na
import numpy as np
from nanoarrow.ipc import StreamWriter
from numpy.typing import NDArray

from undertow.store.arrow_messages import PREFIX_SIZE, flatbuffer_size, read_batch
from undertow.store.layout import (
    FRAMES,
    KEY,
    METADATA_KEY,
    SCALARS,
    ZOOM_KEY,
    Column,
    SegmentFacts,
    columns_of,
    data_places,
)

_ARROW_TYPES: Mapping[str, Any] = {
    "<i8": na.Type.INT64,
    "<f8": na.Type.DOUBLE,
    "<f4": na.Type.FLOAT,
    "<u2": na.Type.UINT16,
}


class Part(NamedTuple):
    """Some numbers of a row: where they begin in its bytes, and how they lie there."""

    place: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Template:
    """One record batch of a segment: `batch` is its bytes, `arrays` are writable views of its columns in them."""

    def __init__(self, facts: SegmentFacts, rows: int = 1) -> None:
        self.facts = facts
        stream = memoryview(_serialize(facts, rows))
        schema_size = PREFIX_SIZE + flatbuffer_size(bytes(stream[:PREFIX_SIZE]))
        header_size = PREFIX_SIZE + flatbuffer_size(bytes(stream[schema_size : schema_size + PREFIX_SIZE]))
        message = read_batch(bytes(stream[schema_size + PREFIX_SIZE : schema_size + header_size]))
        self.prefix = bytes(stream[:schema_size])
        self.batch = bytearray(stream[schema_size : schema_size + header_size + message.body_size])
        self.stride = len(self.batch)
        columns = columns_of(facts)
        self._places = [header_size + place for place in data_places(columns, message)]
        self.arrays: list[NDArray[Any]] = [
            np.ndarray((rows,) if column.size is None else (rows, column.size), column.dtype, self.batch, place)
            for column, place in zip(columns, self._places)
        ]

    def parts(self) -> list[Part]:
        """What has to be filled in of a one-row batch: the key as one record; then all values as one part, so that
        one copy fills them, or each column of a zoom level.
        """
        zoomed = self.facts.level > 1
        key_type = ZOOM_KEY if zoomed else KEY
        key = Part(self._places[0], key_type, (), ())
        if zoomed:
            columns = list(zip(self._places, self.arrays))[FRAMES + 1 :]
            return [key, *(Part(place, array.dtype, array.shape[1:], array.strides[1:]) for place, array in columns)]
        count = len(self.facts.quantities)
        first = self._places[-count] if count else 0
        if self.facts.stream == SCALARS:
            return [key, Part(first, np.dtype("<f8"), (count,), (8,))]
        spacing = self._places[-count + 1] - first if count > 1 else self.stride
        return [key, Part(first, np.dtype("<f4"), (count, self.facts.cells), (spacing, 4))]


def _serialize(facts: SegmentFacts, rows: int) -> bytes:
    """The whole Arrow stream of one batch of zeros, as nanoarrow writes it."""
    columns = columns_of(facts)
    schema = na.Schema(
        na.Type.STRUCT,
        fields=[_field(column) for column in columns],
        metadata={METADATA_KEY: msgspec.json.encode(facts).decode()},
        nullable=False,
    )
    array: Any = na.c_array_from_buffers(schema, rows, [None], children=[_zeros(column, rows) for column in columns])
    out = io.BytesIO()
    writer = StreamWriter.from_writable(out)
    writer.write_array(array)
    writer.close()
    return out.getvalue()


def _field(column: Column) -> na.Schema:
    kind = _ARROW_TYPES[column.dtype]
    if column.size is None:
        return na.Schema(kind, name=column.name, nullable=False)
    item = na.Schema(kind, nullable=False)
    return na.Schema(na.Type.FIXED_SIZE_LIST, name=column.name, value_type=item, list_size=column.size, nullable=False)


def _zeros(column: Column, rows: int) -> Any:
    count = rows * (1 if column.size is None else column.size)
    item = na.Schema(_ARROW_TYPES[column.dtype])
    plain: Any = na.c_array_from_buffers(item, count, [None, np.zeros(count, column.dtype)])
    if column.size is None:
        return plain
    return na.c_array_from_buffers(_field(column), rows, [None], children=[plain])
