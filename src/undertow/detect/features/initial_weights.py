"""The size of every parameter before its first measured step."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import FrameBatch, FrameView, LayerValues, PerLayer


class InitialWeights(PerLayer):
    """The norm each parameter had before the first step that was measured; NaN until then."""

    norm = LayerValues(np.float64, np.nan)

    def __init__(self) -> None:
        self._known: NDArray[np.int32] | None = None  # a block's layers, once all of them are; known by identity

    def take(self, view: FrameView) -> bool:
        """Learn from a frame; False when it has no weights."""
        norms, ids = view.row("weight_norm"), view.ids("weight")
        if norms is None or ids is None:
            return False
        if ids is self._known:
            return True
        unknown = np.isnan(self.norm[ids])
        new = unknown & ~np.isnan(norms)
        if new.any():
            self.norm[ids[new]] = norms_before(view)[new]
        if not unknown.any():
            self._known = ids
        return True


def norms_before(view: FrameView) -> NDArray[np.float64]:
    """The norm of each weight of the frame before its step; after it, where the update was not measured.

    Exact although updates are known from sketches only: the same estimate is in the update's norm and in its ratio.
    Not to be written to: rules share it.
    """
    after = np.asarray(view.row("weight_norm"), np.float64)
    length, ratio = view.row("update_norm"), view.row("update_ratio")
    if length is None or ratio is None or len(length) != len(after):
        return after
    batch = view.batch
    alike = batch.shared("as many", lambda: np.array(batch.frames_with("weight") == batch.frames_with("update")))
    return batch.of(view, "weight", rows_before(batch)) if alike else _before(after, length, ratio)


def rows_before(batch: FrameBatch) -> NDArray[np.float64]:
    """`norms_before` of all frames of a batch whose weights and updates are of the same layers."""
    names = "weight_norm", "update_norm", "update_ratio"
    return batch.shared("norms_before", lambda: _before(*(batch.row(name) for name in names)))


def _before(after: NDArray[Any], length: NDArray[np.float32], ratio: NDArray[np.float32]) -> NDArray[np.float64]:
    before = length.astype(np.float64) / ratio
    before = np.where(np.isnan(ratio) & (length > 0), 0.0, before)  # no ratio to a weight of zero
    return np.where(np.isfinite(before) & (length != 0), before, after)
