"""Readings of many frames side by side, by frame and slot, whatever each frame had measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import EXPONENT_BUCKETS, Moment, Partials
from undertow.measure.statistics import statistics
from undertow.probe.catalogue import Layout
from undertow.probe.readings import RawFrame, Reading, host, number
from undertow.schema.quantities import STATISTIC_NAMES

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Row:
    """The sketches of one frame, packed, and the slots for which they mean anything."""

    sketches: Values
    present: Mask


@dataclass(slots=True)
class Dense:
    """One kind of reading of several frames. Only what `present` marks (frames × slots) means anything."""

    present: Mask
    partials: list[Partials]  # of each frame, over all slots

    @property
    def is_whole(self) -> bool:
        """Whether every frame has every slot, with its sketch."""
        return bool(self.present.all()) and all(partials.sketches is not None for partials in self.partials)

    def statistics(self) -> Values:
        """frames × statistics × slots, NaN where not present."""
        frames, slots = self.present.shape
        values = np.empty((frames, len(STATISTIC_NAMES), slots))
        for partials, out in zip(self.partials, values):  # together they would have to be copied, which takes longer
            statistics(partials, out)
        if not self.present.all():
            values.transpose(0, 2, 1)[~self.present] = np.nan
        return values

    def rows(self) -> list[Row | None]:
        """The sketches of each frame; None where they were not measured."""
        return [
            None if partials.sketches is None else Row(partials.sketches, present)
            for partials, present in zip(self.partials, self.present)
        ]


def dense(frames: Sequence[Sequence[Reading]], layout: Layout, exposed: Mask) -> Dense:
    """Line up the readings of several frames; slots that a frame does not expose are left out of it."""
    present = exposed.copy()
    partials = [_whole(readings, layout, mask) for readings, mask in zip(frames, present)]
    return Dense(present, partials)


def exposed_mask(raws: Sequence[RawFrame], slots: int) -> Mask:
    mask = np.zeros((len(raws), slots), np.bool_)
    for place, alike in runs(raws, _exposed):
        mask[place : place + len(alike), alike[0].exposed] = True
    return mask


def _exposed(raw: RawFrame) -> int:
    return id(raw.exposed)


def runs(raws: Sequence[RawFrame], key: Callable[[RawFrame], object]) -> Iterator[tuple[int, list[RawFrame]]]:
    """Successive frames that are alike, and the place of the first. The recorder makes equal arrays once, so that
    identity tells.
    """
    place = 0
    for _, some in itertools.groupby(raws, key):
        alike = list(some)
        yield place, alike
        place += len(alike)


def _whole(readings: Sequence[Reading], layout: Layout, mask: Mask) -> Partials:
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
    partials, factor = host(partials), number(reading.factor)
    return partials if factor == 1.0 else partials.scaled(factor)
