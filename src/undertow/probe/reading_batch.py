"""Readings of many frames side by side, by frame and slot, whatever each frame had measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_not
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.measure.packed import Packed, statistics_of_many
from undertow.measure.partials import EXPONENT_BUCKETS, Moment, Partials
from undertow.measure.statistics import statistics
from undertow.probe.readings import RawFrame, Reading, factor_now, host
from undertow.probe.watched_layers import SlotLayout
from undertow.schema.quantities import STATISTIC_NAMES

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Row:
    """The sketches of one frame, packed, and the slots for which they mean anything."""

    sketches: Values
    present: Mask


class ReadingBatch:
    """One kind of reading of several frames. Only what `present` marks (frames × slots) means anything."""

    def __init__(self, present: Mask, readings: Sequence[Partials | Packed]) -> None:
        """`readings` of each frame, over all slots; packed ones are complete, and come with none that are not."""
        self.present = present
        self.is_present = bool(present.all())
        self._readings = readings
        self.packed = [one for one in readings if isinstance(one, Packed)]  # all of them, or none

    def __len__(self) -> int:
        return len(self._readings)

    def partials(self, place: int) -> Partials:
        return host(self._readings[place])

    @property
    def has_sketches(self) -> bool:
        """Whether any frame has them."""
        return bool(self.packed) or any(self.partials(place).sketches is not None for place in range(len(self)))

    @property
    def is_whole(self) -> bool:
        """Whether every frame has every slot, with its sketch."""
        if not self.is_present:
            return False
        return bool(self.packed) or all(self.partials(place).sketches is not None for place in range(len(self)))

    def statistics(self) -> Values:
        """frames × statistics × slots, NaN where not present."""
        if self.packed:
            values = statistics_of_many(self.packed)
        else:
            values = np.empty((len(self), len(STATISTIC_NAMES), self.present.shape[1]))
            for place, out in enumerate(values):  # together they would have to be copied, which takes longer
                statistics(self.partials(place), out)
        if not self.is_present:
            values.transpose(0, 2, 1)[~self.present] = np.nan
        return values

    def row(self, place: int) -> Row | None:
        """The sketches of a frame; None where they were not measured."""
        sketches = self.partials(place).sketches
        return None if sketches is None else Row(sketches, self.present[place])


@dataclass(slots=True)
class Placed:
    """What was read in some of the frames of a batch, and which those are."""

    read: ReadingBatch | None
    places: Sequence[int]

    def row(self, place: int) -> Row | None:
        """The sketches of a frame of the batch."""
        return None if self.read is None or place not in self.places else self.read.row(self.places.index(place))


def dense(frames: Sequence[Sequence[Reading]], layout: SlotLayout, exposed: Mask) -> ReadingBatch:
    """Line up the readings of several frames; slots that a frame does not expose are left out of it."""
    packed = [one for one in (_packed(readings, len(layout.sizes)) for readings in frames) if one is not None]
    if len(packed) == len(frames):
        return ReadingBatch(exposed, packed)
    present = exposed.copy()
    return ReadingBatch(present, [_whole(readings, layout, mask) for readings, mask in zip(frames, present)])


def _packed(readings: Sequence[Reading], slots: int) -> Packed | None:
    """The readings of a frame if they are in one piece, as they nearly always are."""
    if len(readings) != 1:
        return None
    (reading,) = readings
    partials: Any = reading.partials
    is_so = type(partials) is Packed and reading.factor == 1.0 and partials.is_complete and len(reading.slots) == slots
    return partials if is_so else None


def exposed_mask(raws: Sequence[RawFrame], slots: int) -> Mask:
    mask = np.zeros((len(raws), slots), np.bool_)
    for place, alike in runs(raws, "exposed"):
        mask[place : place + len(alike), alike[0].exposed] = True
    return mask


def runs(raws: Sequence[RawFrame], *fields: str) -> Iterator[tuple[int, Sequence[RawFrame]]]:
    """Successive frames whose fields are the same, and the place of the first. The recorder makes equal arrays once,
    so that identity tells.
    """
    fields_of = attrgetter(*fields, "layout")  # of two or more it gives a tuple
    first, known = 0, fields_of(raws[0]) if raws else ()
    for place, raw in enumerate(raws):
        found = fields_of(raw)
        if any(map(is_not, found, known)):
            yield first, raws[first:place]
            first, known = place, found
    if raws:
        yield first, raws[first:]


def _whole(readings: Sequence[Reading], layout: SlotLayout, mask: Mask) -> Partials:
    """The readings of one frame as one, over all slots; the mask loses the slots that were not read."""
    if len(readings) == 1 and len(readings[0].slots) == len(layout.sizes):
        return _scaled(readings[0])
    parts = [(reading.slots, _scaled(reading)) for reading in readings]
    slots, bounds = len(layout.sizes), layout.offsets
    every = [partials for _, partials in parts]
    read = np.zeros(slots, np.bool_)
    moments = np.zeros((slots, len(Moment)))
    has_exponents = bool(every) and all(partials.exponents is not None for partials in every)
    has_sketches = bool(every) and all(partials.sketches is not None for partials in every)
    exponents = np.zeros((slots, EXPONENT_BUCKETS), np.int64) if has_exponents else None
    sketches = np.zeros(int(bounds[-1])) if has_sketches else None
    for chosen, partials in parts:
        read[chosen] = True
        moments[chosen] = partials.moments
        if exponents is not None and partials.exponents is not None:
            exponents[chosen] = partials.exponents
        if sketches is not None and partials.sketches is not None:
            for index, slot in enumerate(chosen.tolist()):
                stretch = partials.sketches[partials.offsets[index] : partials.offsets[index + 1]]
                sketches[bounds[slot] : bounds[slot + 1]] = stretch
    mask &= read
    return Partials(moments, exponents, sketches, bounds)


def _scaled(reading: Reading) -> Partials:
    partials = reading.partials
    if type(partials) is Partials and reading.factor == 1.0:  # nearly always
        return partials
    partials, factor = host(partials), factor_now(reading.factor)
    return partials if factor == 1.0 else partials.scaled(factor)
