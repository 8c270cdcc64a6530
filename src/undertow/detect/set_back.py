"""Weights that are suddenly nearer to where they began than their own updates could have taken them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.matrices import Matrices, Values, matrices_of


class SetBack:
    """Compares two measured frames, however far apart: no way is longer than the sum of its steps.

    What brings weights back faster is the program itself, which loads an old state into them.
    """

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._drift: NDArray[np.float64] = np.zeros(0)
        self._length: NDArray[np.float64] = np.zeros(0)  # of the latest measured update
        self.step: int | None = None  # measured last

    def grow(self, count: int) -> None:
        self._start.grow(count)
        self._drift = grown(self._drift, count, np.nan)
        self._length = grown(self._length, count, np.nan)

    def observe(self, view: FrameView) -> tuple[float, float]:
        """Shares of the weight matrices that were set back, and that were set back to their very start."""
        if not self._start.take(view) or view.row("update_norm") is None:
            return 0.0, 0.0
        matrices = matrices_of(view.layout)
        drifts, lengths = matrices.values(view, "weight_drift"), self._relative(view, matrices)
        before, longest = self._drift[matrices.ids], np.fmax(self._length[matrices.ids], lengths)
        gap = 0 if self.step is None else view.step - self.step
        self.step, self._drift[matrices.ids], self._length[matrices.ids] = view.step, drifts, lengths
        known = np.isfinite(before) & np.isfinite(drifts) & (longest > 0)
        if not known.any() or gap <= 0:
            return 0.0, 0.0
        before, drifts, longest = before[known], drifts[known], longest[known]
        back = before - drifts > thresholds.SET_BACK_TRAVEL * gap * longest + thresholds.SET_BACK_NOISE * before
        fresh = back & (drifts < thresholds.SET_BACK_TRAVEL * gap * longest)
        return float(back.mean()), float(fresh.mean())

    def news(self, batch: FrameBatch) -> Flags:
        """Frames in which enough was set back to speak of, and all frames where that cannot be told for many at once.
        The first one always is among them.
        """
        out = np.ones(len(batch), bool)
        whole = list(range(len(batch)))
        if batch.frames_with("weight") != whole or batch.frames_with("update") != whole:
            return out
        if not self._start.knows(batch.ids("weight")):
            return out
        matrices = matrices_of(batch.layout)
        drifts, lengths = self._rows(batch, matrices)
        before, drifts, longest = drifts[:-1], drifts[1:], np.fmax(lengths[:-1], lengths[1:])
        gap = np.diff(batch.steps)[:, None]
        known = np.isfinite(before) & np.isfinite(drifts) & (longest > 0) & (gap > 0)
        with np.errstate(invalid="ignore", over="ignore"):
            way = thresholds.SET_BACK_TRAVEL * gap * longest
            back = known & (before - drifts > way + thresholds.SET_BACK_NOISE * before)
        share = np.count_nonzero(back, axis=1) / np.maximum(np.count_nonzero(known, axis=1), 1)
        out[1:] = share > thresholds.SET_BACK_SHARE - 1e-6
        return out

    def pass_over(self, batch: FrameBatch, last: int) -> None:
        """Know what `observe` would have learnt from frames that are no news."""
        matrices = matrices_of(batch.layout)
        drifts, lengths = self._rows(batch, matrices)
        self.step = batch.frames[last - 1].step
        self._drift[matrices.ids], self._length[matrices.ids] = drifts[last - 1], lengths[last - 1]

    def _rows(self, batch: FrameBatch, matrices: Matrices) -> tuple[Values, Values]:
        with np.errstate(divide="ignore", invalid="ignore"):
            lengths = matrices.rows(batch, "update_norm") / self._start.norm[matrices.ids]
        return matrices.rows(batch, "weight_drift"), np.where(np.isfinite(lengths), lengths, np.nan)

    def _relative(self, view: FrameView, matrices: Matrices) -> Values:
        """Lengths of updates in the units that the drift is in."""
        with np.errstate(divide="ignore", invalid="ignore"):
            lengths = matrices.values(view, "update_norm") / self._start.norm[matrices.ids]
        return np.where(np.isfinite(lengths), lengths, np.nan)
