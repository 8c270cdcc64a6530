"""Which columns a segment has: the one description that writer, reader and Arrow schema share.

It travels as JSON in the metadata of the Arrow schema, under the key `undertow`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from undertow.schema import Stream
from undertow.store.arrow_messages import BatchMessage, DamagedMessageError

METADATA_KEY = "undertow"
SCALARS = "scalars"
ZOOM_FACTOR = 16
ZOOM_LEVELS = (16, 256, 4096)  # frames per row

# A scalar that a frame does not have: a NaN of its own bit pattern, so that a loss that *is* NaN stays data.
ABSENT = np.array(0x7FF8_6162_7365_6E74, "<u8").view("<f8")[()]


class SegmentFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a segment says of itself."""

    stream: str
    layers: tuple[int, ...] = ()
    quantities: tuple[str, ...] = ()  # or the names of the scalars
    width: int = 1  # numbers per layer and quantity
    level: int = 1  # frames per row: 1, or a zoom level
    every: int = 1  # one row of so many was kept when a disk budget thinned the segment

    @property
    def cells(self) -> int:
        """Numbers that one quantity has in one row."""
        return len(self.layers) * self.width

    @property
    def layer_ids(self) -> NDArray[np.int32]:
        return np.array(self.layers, np.int32)


@dataclass(frozen=True, slots=True)
class Column:
    """One Arrow column: a plain number per row, or a list of fixed size."""

    name: str
    dtype: str
    size: int | None = None  # None: a plain number

    @property
    def bytes_per_row(self) -> int:
        return np.dtype(self.dtype).itemsize * (1 if self.size is None else self.size)

    @property
    def buffer_count(self) -> int:
        """Arrow gives a plain column a validity and a data buffer, a list one more validity buffer before them."""
        return 2 if self.size is None else 3


SEQUENCE, STEP, TIME, LAST_SEQUENCE, LAST_STEP, FRAMES = range(6)  # places of the key columns; zoom rows have all six
_KEY = (Column("sequence", "<i8"), Column("step", "<i8"), Column("time", "<f8"))
_ZOOM_KEY = (*_KEY, Column("last_sequence", "<i8"), Column("last_step", "<i8"), Column("frames", "<i8"))
# The same as records: Arrow pads each column to eight bytes, so the keys of a row of one lie side by side.
KEY: np.dtype[Any] = np.dtype([(column.name, column.dtype) for column in _KEY])
ZOOM_KEY: np.dtype[Any] = np.dtype([(column.name, column.dtype) for column in _ZOOM_KEY])
ZOOM_VALUES = ("minimum", "mean", "maximum")
ZOOM_COUNTS = ("infinite", "nan")


def columns_of(facts: SegmentFacts) -> tuple[Column, ...]:
    return _columns(facts.stream == SCALARS, facts.level, facts.quantities, facts.cells)


@lru_cache(maxsize=256)
def _columns(is_scalars: bool, level: int, quantities: tuple[str, ...], cells: int) -> tuple[Column, ...]:
    """Segments of the same columns share them: a long sweep has thousands."""
    if is_scalars:
        return (*_KEY, *(Column(name, "<f8") for name in quantities))
    if level == 1:
        return (*_KEY, *(Column(name, "<f4", cells) for name in quantities))
    size = len(quantities) * cells
    return (
        *_ZOOM_KEY,
        *(Column(name, "<f4", size) for name in ZOOM_VALUES),
        *(Column(name, "<u2", size) for name in ZOOM_COUNTS),
    )


@lru_cache(maxsize=256)
def shared_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same tuple for all that are equal."""
    return names


def facts_of_block(stream: Stream, layer_ids: NDArray[np.int32]) -> SegmentFacts:
    return SegmentFacts(stream.name, tuple(layer_ids.tolist()), stream.names, stream.quantities[0].width)


def facts_of_scalars(names: Sequence[str]) -> SegmentFacts:
    return SegmentFacts(SCALARS, quantities=tuple(names))


def data_places(columns: Sequence[Column], message: BatchMessage) -> list[int]:
    """Where in the body the numbers of each column begin; every length must be what the column needs."""
    if len(message.buffers) != sum(column.buffer_count for column in columns):
        raise DamagedMessageError(f"a record batch has {len(message.buffers)} buffers, not those of its columns")
    places: list[int] = []
    buffer = 0
    for column in columns:
        buffer += column.buffer_count
        offset, length = (int(number) for number in message.buffers[buffer - 1])
        if length != message.rows * column.bytes_per_row or offset < 0 or offset + length > message.body_size:
            raise DamagedMessageError(f"column {column.name!r} claims {length} bytes at {offset}")
        places.append(offset)
    return places
