"""Readings of many frames side by side: arrays by frame and slot, whatever each frame had measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import EXPONENT_BUCKETS, Moment, Partials
from undertow.measure.statistics import statistics
from undertow.probe.catalogue import Layout
from undertow.probe.readings import RawFrame, Reading, host, number

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(slots=True)
class Dense:
    """(frames × slots) of one kind of reading. Only what `present` marks means anything."""

    present: Mask
    moments: Values  # frames × slots × moments
    exponents: NDArray[np.int64] | None
    sketches: Values | None  # frames × packed sketches

    def statistics(self) -> Values:
        """statistics × frames × slots, NaN where not present."""
        frames, slots = self.present.shape
        exponents = None if self.exponents is None else self.exponents.reshape(-1, EXPONENT_BUCKETS)
        flat = Partials(
            self.moments.reshape(frames * slots, -1), exponents, None, np.zeros(frames * slots + 1, np.int64)
        )
        values = statistics(flat).reshape(-1, frames, slots)
        if not self.present.all():
            values[:, ~self.present] = np.nan
        return values


def dense(frames: Sequence[Sequence[Reading]], layout: Layout, exposed: Mask) -> Dense:
    """Line up the readings of several frames; slots that a frame does not expose are left out of it."""
    parts = [[_ready(reading) for reading in readings] for readings in frames]
    slots = len(layout.sizes)
    if exposed.all() and all(len(one) == 1 and len(one[0][0]) == slots for one in parts):
        whole = [one[0][1] for one in parts]
        return Dense(
            np.ones((len(parts), slots), np.bool_),
            np.stack([partials.moments for partials in whole]),
            _stacked([partials.exponents for partials in whole]),
            _stacked([partials.sketches for partials in whole]),
        )
    return _scattered(parts, layout, exposed)


def exposed_mask(raws: Sequence[RawFrame], slots: int) -> Mask:
    mask = np.zeros((len(raws), slots), np.bool_)
    for row, raw in zip(mask, raws):
        row[raw.exposed] = True
    return mask


def _ready(reading: Reading) -> tuple[NDArray[np.int64], Partials]:
    partials, factor = host(reading.partials), number(reading.factor)
    return reading.slots, partials if factor == 1.0 else partials.scaled(factor)


def _stacked(arrays: list[Any]) -> Any:
    given = [array for array in arrays if array is not None]
    return np.stack(given) if len(given) == len(arrays) else None


def _scattered(parts: list[list[tuple[NDArray[np.int64], Partials]]], layout: Layout, exposed: Mask) -> Dense:
    every = [partials for one in parts for _, partials in one]
    frames, slots = exposed.shape
    bounds = layout.offsets
    present = np.zeros((frames, slots), np.bool_)
    moments = np.zeros((frames, slots, len(Moment)))
    has_exponents = bool(every) and all(partials.exponents is not None for partials in every)
    has_sketches = bool(every) and all(partials.sketches is not None for partials in every)
    exponents = np.zeros((frames, slots, EXPONENT_BUCKETS), np.int64) if has_exponents else None
    sketches = np.zeros((frames, int(bounds[-1]))) if has_sketches else None
    for place, one in enumerate(parts):
        for chosen, partials in one:
            present[place, chosen] = True
            moments[place, chosen] = partials.moments
            if exponents is not None and partials.exponents is not None:
                exponents[place, chosen] = partials.exponents
            if sketches is not None and partials.sketches is not None:
                for index, slot in enumerate(chosen.tolist()):
                    stretch = partials.sketches[partials.offsets[index] : partials.offsets[index + 1]]
                    sketches[place, bounds[slot] : bounds[slot + 1]] = stretch
    return Dense(present & exposed, moments, exponents, sketches)
