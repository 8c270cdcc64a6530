"""Weights that change between two steps, without an optimizer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.detect.rule import grown
from undertow.detect.view import View
from undertow.detect.weight_start import norms_before


class BetweenSteps:
    """Compares the norm of each weight before a step with the one that its last step had left.

    Nothing moves a weight between two steps of its optimizer but the program itself: it sets it anew, clamps it, or
    copies another one into it.
    """

    def __init__(self) -> None:
        self._norm: NDArray[np.float64] = np.zeros(0)  # after the last step; NaN when that was not measured
        self._step = -1

    def grow(self, count: int) -> None:
        self._norm = grown(self._norm, count, np.nan)

    def norms(self, view: View) -> NDArray[np.float64]:
        """What the last step had left of each layer of the weight block; to be asked before `observe`."""
        ids = view.ids("weight")
        return np.zeros(0) if ids is None else self._norm[ids]

    def observe(self, view: View) -> NDArray[np.float64] | None:
        """For each layer of the weight block, by how much its norm has changed since its last step, over that norm.

        NaN where that is not known; None for a frame without weights and updates.
        """
        ids, norms, lengths = view.ids("weight"), view.row("weight_norm"), view.row("update_norm")
        if view.step > self._step + 1 or ids is None:
            self._norm[:] = np.nan  # steps that were not measured may have moved anything
        self._step = max(self._step, view.step)
        if ids is None or norms is None or lengths is None or len(lengths) != len(norms):
            return None
        before = self._norm[ids]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            change = np.where(lengths > 0, np.abs(norms_before(view) - before) / before, np.nan)
        known = ~np.isnan(norms)
        if known.all():
            self._norm[ids] = norms
        else:
            self._norm[ids[known]] = norms[known]
        return change
