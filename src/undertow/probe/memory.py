"""What is remembered from one frame to the next: the last sketch of every tensor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import offsets_of

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


class SketchMemory:
    """Packed sketches by slot, and which of them are known."""

    def __init__(self, sizes: NDArray[np.int64]) -> None:
        self.offsets = offsets_of(sizes)
        self.lengths = np.diff(self.offsets)
        self.values: Values = np.zeros(int(self.offsets[-1]))
        self.known: Mask = np.zeros(len(sizes), np.bool_)

    def put(self, packed: Values, which: Mask) -> None:
        """Take the sketches of the chosen slots from a full row."""
        if which.all():
            self.values = packed
        elif which.any():
            self.values = np.where(np.repeat(which, self.lengths), packed, self.values)
        self.known = self.known | which

    def forget(self) -> None:
        self.known = np.zeros(len(self.known), np.bool_)

    def advance(self, rows: Values, present: Mask) -> tuple[Values, Mask]:
        """What was known before each of these rows; afterwards the memory holds the last of them."""
        if present.all() and len(rows):
            before = np.concatenate([self.values[None], rows[:-1]])
            known = np.concatenate([self.known[None], present[:-1]])
            self.put(rows[-1], present[-1])
            return before, known
        before, known = np.empty_like(rows), np.empty_like(present)
        for place, row in enumerate(rows):
            before[place], known[place] = self.values, self.known
            self.put(row, present[place])
        return before, known
