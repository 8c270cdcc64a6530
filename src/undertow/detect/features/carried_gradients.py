"""Gradients that were still there when the next backward pass added to them."""

import numpy as np

from undertow.detect.engine import Flags, FrameBatch, FrameView, LayerStreak, LayerValues, Tracker, Wake, where


def _held_changes(batch: FrameBatch) -> Flags:
    if not batch.has("gradient"):
        return batch.none()
    flags = batch.row("gradient_carried")
    held = (batch.row("gradient_optimizer") >= 0) & (batch.row("gradient_zero_fraction") != 1)
    return batch.changed("gradient", np.where(np.isnan(flags), flags, held))


class CarriedGradients(Tracker):
    """Per layer: at how many steps in a row its gradient survived a step, and whether an optimizer holds it."""

    needs = frozenset({"gradient"})
    wakes_on = where("gradient_carried", lambda flags: flags == 1) | Wake(_held_changes)

    held = LayerValues(np.bool_, False)
    _norm = LayerValues(np.float32, np.nan)  # of the latest gradient

    def __init__(self) -> None:
        self.streak = LayerStreak()

    @property
    def is_calm(self) -> bool:
        return not self.streak.length.any()

    def follow(self, view: FrameView) -> None:
        ids, flags, norms = view.ids("gradient"), view.row("gradient_carried"), view.row("gradient_norm")
        holders, zeros = view.row("gradient_optimizer"), view.row("gradient_zero_fraction")
        if ids is None or flags is None or norms is None or holders is None or zeros is None:
            return
        measured = ~np.isnan(flags)
        held = (holders >= 0) & ~(zeros == 1)
        self.held[ids[measured]] = held[measured]
        carried = (flags == 1) & held
        self.streak.end(ids[measured & ~carried])
        # Nothing is added to a gradient that stays the same to the last bit: its parameter is no longer used.
        carried &= norms != self._norm[ids]
        known = ~np.isnan(norms)
        self._norm[ids[known]] = norms[known]
        self.streak.hold(ids[carried], view.step)

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        if batch.frames_with("gradient", first, last):
            ids, norms = batch.latest("gradient_norm", first, last)
            self._norm[ids] = norms
