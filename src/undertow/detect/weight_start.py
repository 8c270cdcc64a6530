"""The size of every parameter before its first measured step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.detect.rule import grown
from undertow.detect.view import View


class WeightStart:
    """The norm each parameter had before the first step that was measured; NaN until then."""

    __slots__ = ("norm",)

    def __init__(self) -> None:
        self.norm: NDArray[np.float64] = np.zeros(0)

    def grow(self, count: int) -> None:
        self.norm = grown(self.norm, count, np.nan)

    def take(self, view: View) -> bool:
        """Learn from a frame; False when it has no weights."""
        norms, ids = view.row("weight_norm"), view.ids("weight")
        if norms is None or ids is None:
            return False
        new = np.isnan(self.norm[ids]) & ~np.isnan(norms)
        if new.any():
            self.norm[ids[new]] = norms_before(view)[new]
        return True


def norms_before(view: View) -> NDArray[np.float64]:
    """The norm of each weight of the frame before its step; after it, where the update was not measured.

    Exact although updates are known from sketches only: the same estimate is in the update's norm and in its ratio.
    """
    after = np.asarray(view.row("weight_norm"), np.float64)
    length, ratio = view.row("update_norm"), view.row("update_ratio")
    if length is None or ratio is None or len(length) != len(after):
        return after
    with np.errstate(divide="ignore", invalid="ignore"):
        before = length.astype(np.float64) / ratio
    before = np.where(np.isnan(ratio) & (length > 0), 0.0, before)  # no ratio to a weight of zero
    return np.where(np.isfinite(before) & (length != 0), before, after)
