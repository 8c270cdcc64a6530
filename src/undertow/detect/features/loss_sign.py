"""The loss while it was above zero: what tells a sign that turned from a loss that may be negative."""

import math

import numpy as np

from undertow.detect.engine import Flags, FrameBatch, FrameView, Tracker, Wake, having

FIRST_LOSSES = 9  # by which the size of the first losses is known


def _is_unusual(batch: FrameBatch) -> Flags:
    usual = (batch.loss("positive") == 1) & (batch.loss("actors") == 1) & (batch.loss("seen") > FIRST_LOSSES)
    return np.asarray(~usual, bool)


class LossSign(Tracker):
    """Of an error with the wrong sign more is known than that it is unbounded: that one is judged first."""

    wakes_on = Wake(_is_unusual) | having("loss_factor", "loss_without_floor", "optimizer_maximizes")
    is_of_one_training = True
    order = ("negated-loss", "unbounded-loss")

    def __init__(self) -> None:
        self.level = math.inf  # of the losses while they were all positive
        self.latest = math.nan  # of them

    def follow(self, view: FrameView) -> None:
        if view.loss is not None and view.loss.positive:
            self.level, self.latest = view.loss.level, view.loss.value

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        loss = batch.latest_loss(first, last)
        if loss is not None:
            self.level, self.latest = loss.level, loss.value
