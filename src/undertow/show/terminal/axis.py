"""Steps across the terminal: which character stands for which steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Axis:
    """`columns` of `width` steps each, drawn `repeat` times side by side, `halves` of them in a character."""

    first: int
    width: int
    columns: int
    repeat: int
    halves: int

    @classmethod
    def of(cls, first: int, last: int, characters: int, halves: int, growing: bool = False) -> Axis:
        """From `first` to `last`, both included. While a run grows, the axis changes only now and then: by doubling."""
        steps, room = max(1, last - first + 1), max(1, characters) * halves
        width = -(-steps // room)
        if growing:
            width = 1 << (width - 1).bit_length()
        columns = -(-steps // width)
        repeat = max(1, room // columns)
        if growing:
            repeat = 1 << (repeat.bit_length() - 1)
        return cls(first, width, columns, repeat, halves)

    @property
    def last(self) -> int:
        return self.first + self.columns * self.width - 1

    @property
    def characters(self) -> int:
        return -(-self.columns * self.repeat // self.halves)

    def column(self, step: int) -> int:
        return (step - self.first) // self.width

    def character(self, step: int) -> int:
        """Where a step begins."""
        return self.column(step) * self.repeat // self.halves

    def gather(self, steps: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """One number per character: the mean of the finite values there, NaN where there are none."""
        column, inside = self._columns(steps)
        good = inside & np.isfinite(values)
        count = np.bincount(column[good], minlength=self.columns)
        total = np.bincount(column[good], weights=values[good], minlength=self.columns)
        with np.errstate(invalid="ignore"):
            means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        return means[self._source()]

    def any_of(self, steps: NDArray[np.int64], marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """For each character whether a marked step lies in it."""
        column, inside = self._columns(steps)
        found = np.bincount(column[inside & marked], minlength=self.columns) > 0
        return found[self._source()] | found[self._source(self.halves - 1)]

    def _columns(self, steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        column = (steps - self.first) // self.width
        return column, (column >= 0) & (column < self.columns)

    def _source(self, half: int = 0) -> NDArray[np.int64]:
        """The column in the first, or another, half of each character."""
        return np.minimum((np.arange(self.characters) * self.halves + half) // self.repeat, self.columns - 1)
