"""Weights that change between two steps, without an optimizer."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Flags, FrameBatch, FrameView, LayerValues, Limit, PerLayer, Tracker, Wake
from undertow.detect.features.initial_weights import norms_before, rows_before

WRITTEN = Limit(1e-5, "by which a norm changes between two steps; rounding changes it by 1e-7")


class BetweenSteps(PerLayer):
    """Compares the norm of each weight before a step with the one that its last step had left.

    Nothing moves a weight between two steps of its optimizer but the program itself: it sets it anew, clamps it, or
    copies another one into it.
    """

    _norm = LayerValues(np.float64, np.nan)  # after the last step; NaN when that was not measured

    def __init__(self) -> None:
        self._step = -1

    def norms(self, view: FrameView) -> NDArray[np.float64]:
        """What the last step had left of each layer of the weight block; to be asked before `observe`."""
        ids = view.ids("weight")
        return np.zeros(0) if ids is None else self._norm[ids]

    def observe(self, view: FrameView) -> NDArray[np.float64] | None:
        """For each layer of the weight block, by how much its norm has changed since its last step, over that norm.

        NaN where that is not known; None for a frame without weights and updates.
        """
        ids, norms, lengths = view.ids("weight"), view.row("weight_norm"), view.row("update_norm")
        unknown = view.step > self._step + 1 or ids is None
        if unknown:
            self._norm[:] = np.nan  # steps that were not measured may have moved anything
        self._step = max(self._step, view.step)
        if ids is None or norms is None or lengths is None or len(lengths) != len(norms):
            return None
        if unknown:
            change = np.full(len(norms), np.nan)
        else:
            before = self._norm[ids]
            change = np.where(lengths > 0, np.abs(norms_before(view) - before) / before, np.nan)
        known = ~np.isnan(norms)
        if known.all():
            self._norm[ids] = norms
        else:
            self._norm[ids[known]] = norms[known]
        return change

    def news(self, batch: FrameBatch, least: float) -> Flags:
        """Frames of which `observe` could give a change above this, if it has seen all frames before them; and all
        frames for which that cannot be told for many at once. With weights, the first one always is among them.
        """
        if not batch.has("weight"):
            return batch.none()
        out = np.ones(len(batch), bool)
        whole = list(range(len(batch)))
        if batch.frames_with("weight") != whole or batch.frames_with("update") != whole:
            return out
        norms, lengths = batch.row("weight_norm"), batch.row("update_norm")
        if norms.shape != lengths.shape or np.isnan(norms).any():
            return out
        latest = np.maximum.accumulate(batch.steps)
        follows = batch.steps[1:] <= latest[:-1] + 1  # else steps that were not measured may have moved anything
        if not follows.any():
            out[1:] = False
            return out
        before = norms[:-1].astype(np.float64)
        change = np.abs(rows_before(batch)[1:] - before) / before
        out[1:] = ((change > least) & (lengths[1:] > 0)).any(axis=1) & follows
        return out

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> None:
        """Know what `observe` would have learnt from frames that are no news."""
        if not batch.has("weight"):
            self._norm[:] = np.nan
            self._step = max(self._step, int(batch.steps[first:last].max()))
            return
        steps = np.maximum.accumulate(np.concatenate(([self._step], batch.steps[first:last])))
        if (batch.steps[first:last] > steps[:-1] + 1).any():
            self._norm[:] = np.nan
        self._step = int(steps[-1])
        self._norm[batch.ids("weight")] = batch.row("weight_norm")[last - 1]


def written_between(least: float) -> Wake:
    """Frames before which the program changed the norm of a weight by more than this share, or where nobody knows."""
    return Wake(lambda batch: BetweenSteps().news(batch, least))


class WrittenWeights(Tracker):
    """Says of every frame what `BetweenSteps.observe` does."""

    wakes_on = written_between(WRITTEN)

    def __init__(self) -> None:
        self.change: NDArray[np.float64] | None = None
        self.begun: int | None = None  # the first step of all
        self._between = BetweenSteps()

    def follow(self, view: FrameView) -> None:
        self.begun = view.step if self.begun is None else self.begun
        self.change = self._between.observe(view)

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        self.begun = batch.frames[first].step if self.begun is None else self.begun
        self._between.pass_over(batch, first, last)
