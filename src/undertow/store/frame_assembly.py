"""Frames put together again from the rows of all streams that carry their sequence number."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from undertow.schema import STREAMS, Block, Frame
from undertow.store.layout import ABSENT
from undertow.store.row_index import RowTable, Timeline
from undertow.store.segment import Rows, Segment

_ABSENT_BITS = np.float64(ABSENT).view(np.uint64)


class FrameSource:
    def __init__(self, timeline: Timeline, tables: Mapping[str, RowTable]) -> None:
        self._timeline = timeline
        self._tables = tables

    def frames(self, first: int, last: int) -> list[Frame]:
        """The frames from number `first` up to, not including, `last`."""
        axis = self._timeline.table.take(np.arange(first, min(last, len(self._timeline.sequence))))
        scalars = self._scalars(axis)
        blocks: list[dict[str, Block]] = [{} for _ in range(len(axis))]
        for stream, table in self._tables.items():
            low, high = table.between(int(axis.sequence[0]), int(axis.sequence[-1]))
            part = table.take(np.arange(low, high))
            for segment, places in part.by_segment():
                rows = _block_rows(segment, stream, part.row[places])
                layer_ids = segment.facts.layer_ids
                for frame, values in zip(np.searchsorted(axis.sequence, part.sequence[places]), rows):
                    blocks[frame][stream] = Block(stream, layer_ids, values)
        return [
            Frame(int(axis.sequence[i]), int(axis.step[i]), float(axis.time[i]), scalars[i], blocks[i])
            for i in range(len(axis))
        ]

    def _scalars(self, axis: RowTable) -> list[dict[str, float]]:
        scalars: list[dict[str, float]] = [{} for _ in range(len(axis))]
        for segment, places in axis.by_segment():
            for column, name in enumerate(segment.facts.quantities, start=3):
                values: NDArray[np.float64] = segment.read(column, axis.row[places])
                present = values.view(np.uint64) != _ABSENT_BITS
                for frame, value in zip(places[present], values[present].tolist()):
                    scalars[frame][name] = value
        return scalars


def _block_rows(segment: Segment, stream: str, rows: Rows) -> NDArray[np.float32]:
    """(rows × quantities × cells) in the order of today's vocabulary; NaN for a quantity the segment lacks."""
    stored = segment.facts.quantities
    wanted = STREAMS[stream].quantities
    out = np.full((len(rows), len(wanted), len(segment.facts.layers) * wanted[0].width), np.nan, np.float32)
    if segment.facts.width == wanted[0].width:
        for place, quantity in enumerate(wanted):
            if quantity.name in stored:
                out[:, place] = segment.read(3 + stored.index(quantity.name), rows)
    return out
