"""How long the steps of an optimizer are, and whether they follow the size of the gradient."""

import math

import numpy as np

from undertow.detect.engine import FrameBatch, FrameView, Limit, Tracker, where_scalar
from undertow.detect.features.matrices import matrices_of, middle

CLIPPED = 0.02  # of the gradient is left


class StepLength(Tracker):
    """Of the latest step: `speed` is the update over the weight, in the middle of all matrices."""

    wakes_on = where_scalar("clip_coefficient", lambda left: left < CLIPPED)

    momentum = Limit(300.0, "update over (learning rate × gradient): momentum 0.99 makes it 100, Adam has no bound")

    def __init__(self) -> None:
        self.speed = math.nan
        self.follows_gradient = False  # updates are as long as the learning rate times the gradient
        self._speed_per_gradient = math.nan

    def follow(self, view: FrameView) -> None:
        left, total = view.scalar("clip_coefficient"), view.scalar("gradient_norm_total")
        if view.skipped or math.isnan(left):
            return
        if view.ids("update") is not None:
            self._measure(view, left * total)
        elif self.follows_gradient:
            self.speed = self._speed_per_gradient * left * total

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        """How the optimizer steps is known from the latest update, its speed from the latest step."""
        told = ~batch.skipped & ~np.isnan(batch.scalar("clip_coefficient"))
        updates = [place for place in batch.frames_with("update", first, last) if told[place]]
        latest = first + np.flatnonzero(told[first:last])
        for place in sorted({*updates[-1:], *latest[-1:].tolist()}):
            self.follow(batch.view(place))

    def _measure(self, view: FrameView, stepped: float) -> None:
        matrices = matrices_of(view.layout)
        with np.errstate(divide="ignore", invalid="ignore"):
            gradient = view.scalar("lr") * matrices.values(view, "stepped_gradient_norm")
            length = matrices.values(view, "update_norm") / gradient
        self.speed = middle(matrices.values(view, "update_ratio"))
        self._speed_per_gradient = self.speed / stepped if stepped > 0 else math.nan
        self.follows_gradient = 0.3 < middle(length) < self.momentum
