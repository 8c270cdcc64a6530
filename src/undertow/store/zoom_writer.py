"""The zoom pyramid: smallest, mean and largest finite value over 16, 256 and 4096 frames, as they come.

The mean is over finite values; infinite values and NaN are counted apart, because NaN also means
"not measured". What a killed process had not yet summed up is simply read from the level below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.store.layout import KEY, ZOOM_FACTOR, ZOOM_KEY, ZOOM_LEVELS

Keys = NDArray[Any]  # records of sequence, step and time
ZoomKey = tuple[int, int, float, int, int, int]  # sequence, step and time of the first, last of both, frames


@dataclass(slots=True)
class Summaries:
    """Rows of a zoom level: their keys, and (rows × cells) of the rest."""

    keys: list[ZoomKey]
    minimum: NDArray[np.float32]
    maximum: NDArray[np.float32]
    total: NDArray[np.float64]
    infinite: NDArray[np.uint16]
    nan: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, rows: slice) -> Summaries:
        return Summaries(
            self.keys[rows],
            self.minimum[rows],
            self.maximum[rows],
            self.total[rows],
            self.infinite[rows],
            self.nan[rows],
        )

    def parts(self) -> tuple[NDArray[Any], ...]:
        """As a zoom level holds them."""
        keys = np.array(self.keys, ZOOM_KEY)
        return keys, self.minimum, self._mean(keys["frames"]), self.maximum, self.infinite, self.nan

    def _mean(self, frames: NDArray[np.int64]) -> NDArray[np.float32]:
        finite = frames[:, None] - self.infinite - self.nan
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            mean = (self.total / finite).astype(np.float32)
            return np.fmin(np.fmax(mean, self.minimum), self.maximum)  # rounding must not lead outside of the range


Sink = Callable[[int, Summaries], None]  # level, finished rows


class Pyramid:
    """The zoom levels of one stream and layer set. `sink` is given the finished rows.

    Rows are cut at the same places however the frames come in batches, so the bytes are the same too.
    """

    def __init__(self, size: int, sink: Sink) -> None:
        self._sink = sink
        self._size = size
        self._values = np.empty((ZOOM_FACTOR, size), np.float32)  # frames that wait until a row is full
        self._keys: Keys = np.empty(ZOOM_FACTOR, KEY)
        self._waiting = 0
        self._open: list[tuple[Summaries | None, int]] = [(None, 0) for _ in ZOOM_LEVELS[1:]]  # and of how many rows

    def add(self, keys: Keys, values: NDArray[np.float32]) -> None:
        """Values are (frames × …)."""
        count, done = len(values), 0
        values = values.reshape(count, self._size)
        if self._waiting:
            done = min(count, ZOOM_FACTOR - self._waiting)
            self._wait(keys[:done], values[:done])
            if self._waiting == ZOOM_FACTOR:
                self._waiting = 0
                self._finish(self._keys, self._values, ZOOM_FACTOR)
        whole = (count - done) // ZOOM_FACTOR * ZOOM_FACTOR
        if whole:
            self._finish(keys[done : done + whole], values[done : done + whole], ZOOM_FACTOR)
            done += whole
        if done < count:
            self._wait(keys[done:], values[done:])

    def _wait(self, keys: Keys, values: NDArray[np.float32]) -> None:
        some = slice(self._waiting, self._waiting + len(keys))
        self._values[some] = values
        self._keys[some] = keys
        self._waiting = some.stop

    def _finish(self, keys: Keys, values: NDArray[np.float32], frames: int) -> None:
        """Frames that make whole rows of so many frames each."""
        rows = summarize(keys, values.reshape(-1, frames, self._size))
        self._sink(ZOOM_LEVELS[0], rows)
        self._rise(0, rows)

    def _rise(self, place: int, rows: Summaries) -> None:
        """Sum up rows in the level above them, and on from there."""
        done = 0
        while place < len(self._open) and done < len(rows):
            above, parts = self._open[place]
            taken = rows.part(slice(done, done + ZOOM_FACTOR - parts))
            above = merge(taken if above is None else joined(above, taken))
            done, parts = done + len(taken), parts + len(taken)
            self._open[place] = (above, parts)
            if parts == ZOOM_FACTOR:
                self._open[place] = (None, 0)
                self._sink(ZOOM_LEVELS[place + 1], above)
                self._rise(place + 1, above)

    def flush(self) -> None:
        """Write what is summed up so far; a level with a single row below it would say nothing new."""
        if self._waiting > 1:
            self._finish(self._keys[: self._waiting], self._values[: self._waiting], self._waiting)
        self._waiting = 0
        for place, level in enumerate(ZOOM_LEVELS[1:]):
            above, parts = self._open[place]
            self._open[place] = (None, 0)
            if above is not None and parts > 1:
                self._sink(level, above)
                self._rise(place + 1, above)


def summarize(keys: Keys, values: NDArray[np.float32]) -> Summaries:
    """One row each for the frames of every (rows × frames × cells)."""
    shape = values.shape[:2]
    sequence, step, time = (keys[name].reshape(shape) for name in ("sequence", "step", "time"))
    row_keys: list[ZoomKey] = [
        (*key, shape[1])
        for key in zip(
            sequence[:, 0].tolist(),
            step.min(axis=1).tolist(),
            time[:, 0].tolist(),
            sequence[:, -1].tolist(),
            step.max(axis=1).tolist(),
        )
    ]
    none = np.zeros((shape[0], values.shape[2]), np.uint16)
    finite = np.isfinite(values)
    if finite.all():
        total = values.sum(axis=1, dtype=np.float64)
        return Summaries(row_keys, values.min(axis=1), values.max(axis=1), total, none, none)
    nan = np.isnan(values)
    nan_count = nan.sum(axis=1, dtype=np.uint16)
    infinite = (shape[1] - finite.sum(axis=1, dtype=np.uint16) - nan_count).astype(np.uint16)
    known: NDArray[Any] = np.where(finite, values, np.float32(np.nan)) if infinite.any() else values
    with np.errstate(invalid="ignore"):  # columns that are NaN throughout
        minimum, maximum = np.fmin.reduce(known, axis=1), np.fmax.reduce(known, axis=1)
    total = np.where(finite, values, np.float32(0)).sum(axis=1, dtype=np.float64)
    return Summaries(row_keys, minimum, maximum, total, infinite, nan_count)


def joined(first: Summaries, second: Summaries) -> Summaries:
    def both(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate((one, other))

    return Summaries(
        first.keys + second.keys,
        both(first.minimum, second.minimum),
        both(first.maximum, second.maximum),
        both(first.total, second.total),
        both(first.infinite, second.infinite),
        both(first.nan, second.nan),
    )


def merge(rows: Summaries) -> Summaries:
    """All rows as one."""
    return Summaries(
        [_merged_key(rows.keys)],
        np.fmin.reduce(rows.minimum, axis=0, keepdims=True),
        np.fmax.reduce(rows.maximum, axis=0, keepdims=True),
        rows.total.sum(axis=0, keepdims=True),
        rows.infinite.sum(axis=0, dtype=np.uint16, keepdims=True),
        rows.nan.sum(axis=0, dtype=np.uint16, keepdims=True),
    )


def _merged_key(keys: Sequence[ZoomKey]) -> ZoomKey:
    first, last = keys[0], keys[-1]
    first_step, last_step = min(key[1] for key in keys), max(key[4] for key in keys)
    return first[0], first_step, first[2], last[3], last_step, sum(key[5] for key in keys)
