"""The zoom pyramid: smallest, mean and largest finite value over 16, 256 and 4096 frames, as they come.

The mean is over finite values; infinite values and NaN are counted apart, because NaN also means
"not measured". What a killed process had not yet summed up is simply read from the level below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.store.layout import ZOOM_FACTOR, ZOOM_LEVELS
from undertow.store.template import Template

Sink = Callable[[int, "Summary"], None]  # level, row


class Summary:
    """One row of a zoom level: (quantities × cells) flattened."""

    __slots__ = ("first", "frames", "infinite", "last_sequence", "last_step", "maximum", "minimum", "nan", "total")

    def __init__(self, size: int) -> None:
        self.first: tuple[int, int, float] = (0, 0, 0.0)  # sequence, step, time
        self.last_sequence = 0
        self.last_step = 0
        self.frames = 0
        self.minimum = np.full(size, np.nan, np.float32)
        self.maximum = np.full(size, np.nan, np.float32)
        self.total = np.zeros(size, np.float64)
        self.infinite = np.zeros(size, np.uint16)
        self.nan = np.zeros(size, np.uint16)

    def add(self, other: Summary) -> None:
        if not self.frames:
            self.first = other.first
            self.last_step = other.last_step
        first_step = min(self.first[1], other.first[1])
        self.first = (self.first[0], first_step, self.first[2])
        self.last_sequence = other.last_sequence
        self.last_step = max(self.last_step, other.last_step)
        self.frames += other.frames
        np.fmin(self.minimum, other.minimum, out=self.minimum)
        np.fmax(self.maximum, other.maximum, out=self.maximum)
        self.total += other.total
        self.infinite += other.infinite
        self.nan += other.nan

    def mean(self) -> NDArray[np.float32]:
        finite = self.frames - self.infinite.astype(np.int64) - self.nan
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            mean = (self.total / finite).astype(np.float32)
            return np.fmin(np.fmax(mean, self.minimum), self.maximum)  # rounding must not lead outside of the range

    def fill(self, template: Template) -> None:
        arrays = template.arrays
        keys = (*self.first, self.last_sequence, self.last_step, self.frames)
        values = (self.minimum, self.mean(), self.maximum, self.infinite, self.nan)
        for target, value in zip(arrays, (*keys, *values), strict=True):
            target[0] = value


class Pyramid:
    """The zoom levels of one stream and layer set. `sink` is given each finished row."""

    def __init__(self, shape: tuple[int, int], sink: Sink) -> None:
        self._sink = sink
        self._size = shape[0] * shape[1]
        self._values = np.empty((ZOOM_FACTOR, self._size), np.float32)
        self._keys: list[tuple[int, int, float]] = []
        self._open: list[tuple[Summary, int]] = [(Summary(self._size), 0) for _ in ZOOM_LEVELS[1:]]

    def add(self, sequence: int, step: int, time: float, values: NDArray[np.float32]) -> None:
        self._values[len(self._keys)].reshape(values.shape)[...] = values
        self._keys.append((sequence, step, time))
        if len(self._keys) == ZOOM_FACTOR:
            self._finish_frames()

    def _finish_frames(self) -> None:
        summary = summarize(self._values[: len(self._keys)], self._keys)
        self._keys = []
        self._sink(ZOOM_LEVELS[0], summary)
        for place, level in enumerate(ZOOM_LEVELS[1:]):
            above, parts = self._open[place]
            above.add(summary)
            if parts + 1 < ZOOM_FACTOR:
                self._open[place] = (above, parts + 1)
                return
            self._sink(level, above)
            self._open[place] = (Summary(self._size), 0)
            summary = above

    def flush(self) -> None:
        """Write what is summed up so far; a level with a single row below it would say nothing new."""
        if len(self._keys) > 1:
            self._finish_frames()
        for place, level in enumerate(ZOOM_LEVELS[1:]):
            above, parts = self._open[place]
            if parts > 1:
                self._sink(level, above)
                if place + 1 < len(self._open):
                    top, top_parts = self._open[place + 1]
                    top.add(above)
                    self._open[place + 1] = (top, top_parts + 1)
            self._open[place] = (Summary(self._size), 0)


def summarize(values: NDArray[np.float32], keys: list[tuple[int, int, float]]) -> Summary:
    summary = Summary(0)
    steps = [key[1] for key in keys]
    summary.first = (keys[0][0], min(steps), keys[0][2])
    summary.last_sequence = keys[-1][0]
    summary.last_step = max(steps)
    summary.frames = len(keys)
    finite = np.isfinite(values)
    if finite.all():
        summary.minimum = values.min(axis=0)
        summary.maximum = values.max(axis=0)
        summary.total = values.sum(axis=0, dtype=np.float64)
        summary.infinite = summary.nan = np.zeros(values.shape[1], np.uint16)
        return summary
    nan = np.isnan(values)
    known: NDArray[Any] = np.where(finite, values, np.float32(np.nan))
    with np.errstate(invalid="ignore"):  # columns that are NaN throughout
        summary.minimum = np.fmin.reduce(known, axis=0)
        summary.maximum = np.fmax.reduce(known, axis=0)
    summary.total = np.where(finite, values, np.float32(0)).sum(axis=0, dtype=np.float64)
    summary.nan = nan.sum(axis=0, dtype=np.uint16)
    summary.infinite = (len(keys) - finite.sum(axis=0, dtype=np.uint16) - summary.nan).astype(np.uint16)
    return summary
