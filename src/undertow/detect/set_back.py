"""Weights that are suddenly nearer to where they began than their own updates could have taken them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds
from undertow.detect.matrices import Matrices, Values, matrices_of
from undertow.detect.rule import grown
from undertow.detect.stretch import Flags, Stretch
from undertow.detect.view import View
from undertow.detect.weight_start import WeightStart


class SetBack:
    """Compares two measured frames, however far apart: no way is longer than the sum of its steps.

    What brings weights back faster is the program itself, which loads an old state into them.
    """

    def __init__(self) -> None:
        self._start = WeightStart()
        self._drift: NDArray[np.float64] = np.zeros(0)
        self._length: NDArray[np.float64] = np.zeros(0)  # of the latest measured update
        self.step: int | None = None  # measured last

    def grow(self, count: int) -> None:
        self._start.grow(count)
        self._drift = grown(self._drift, count, np.nan)
        self._length = grown(self._length, count, np.nan)

    def observe(self, view: View) -> tuple[float, float]:
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

    def news(self, stretch: Stretch) -> Flags:
        """Frames in which enough was set back to speak of, and all frames where that cannot be told for many at once.
        The first one always is among them.
        """
        out = np.ones(len(stretch), bool)
        whole = list(range(len(stretch)))
        if stretch.frames_with("weight") != whole or stretch.frames_with("update") != whole:
            return out
        if not self._start.knows(stretch.ids("weight")):
            return out
        matrices = matrices_of(stretch.layout)
        drifts, lengths = self._rows(stretch, matrices)
        before, drifts, longest = drifts[:-1], drifts[1:], np.fmax(lengths[:-1], lengths[1:])
        gap = np.diff(stretch.steps)[:, None]
        known = np.isfinite(before) & np.isfinite(drifts) & (longest > 0) & (gap > 0)
        with np.errstate(invalid="ignore", over="ignore"):
            way = thresholds.SET_BACK_TRAVEL * gap * longest
            back = known & (before - drifts > way + thresholds.SET_BACK_NOISE * before)
        share = np.count_nonzero(back, axis=1) / np.maximum(np.count_nonzero(known, axis=1), 1)
        out[1:] = share > thresholds.SET_BACK_SHARE - 1e-6
        return out

    def pass_over(self, stretch: Stretch, last: int) -> None:
        """Know what `observe` would have learnt from frames that are no news."""
        matrices = matrices_of(stretch.layout)
        drifts, lengths = self._rows(stretch, matrices)
        self.step = stretch.frames[last - 1].step
        self._drift[matrices.ids], self._length[matrices.ids] = drifts[last - 1], lengths[last - 1]

    def _rows(self, stretch: Stretch, matrices: Matrices) -> tuple[Values, Values]:
        with np.errstate(divide="ignore", invalid="ignore"):
            lengths = matrices.rows(stretch, "update_norm") / self._start.norm[matrices.ids]
        return matrices.rows(stretch, "weight_drift"), np.where(np.isfinite(lengths), lengths, np.nan)

    def _relative(self, view: View, matrices: Matrices) -> Values:
        """Lengths of updates in the units that the drift is in."""
        with np.errstate(divide="ignore", invalid="ignore"):
            lengths = matrices.values(view, "update_norm") / self._start.norm[matrices.ids]
        return np.where(np.isfinite(lengths), lengths, np.nan)
