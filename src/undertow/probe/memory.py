"""What is remembered from one frame to the next: the last sketch of every tensor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import offsets_of

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


class SketchMemory:
    """Packed sketches by slot, and their squared norms: NaN where none is known."""

    def __init__(self, sizes: NDArray[np.int64]) -> None:
        self.offsets = offsets_of(sizes)
        self.lengths = np.diff(self.offsets)
        self.values: Values = np.zeros(int(self.offsets[-1]))
        self.squares: Values = np.full(len(sizes), np.nan)

    @property
    def known(self) -> Mask:
        return ~np.isnan(self.squares)

    def put(self, packed: Values, squares: Values, which: Mask) -> None:
        """Take the sketches of the chosen slots from a full row."""
        if which.all():
            self.values, self.squares = packed, squares
        elif which.any():
            self.values = np.where(np.repeat(which, self.lengths), packed, self.values)
            self.squares = np.where(which, squares, self.squares)

    def forget(self) -> None:
        self.squares = np.full(len(self.squares), np.nan)
