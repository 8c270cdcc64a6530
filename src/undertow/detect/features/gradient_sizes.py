"""Sizes of gradients along depth: what several conditions ask of a model deep enough to have a trend."""

import numpy as np

from undertow.detect.engine import Flags, FrameBatch, FrameView, Limit, Tracker, Wake
from undertow.detect.features.matrices import Values, matrices_of

LEAST_MATRICES = Limit(4, "weight matrices; fewer make no line")
STEEP = Limit(3.0, "decades from end to end; healthy trainings: within 1.3")
STEEP_IN_DOUBT = Limit(2.2, "decades: six plain ReLU layers make this, and may learn yet")
LEAST_FIT = Limit(0.6, "of the variance that a straight line through the logarithms explains")


def with_depth(batch: FrameBatch) -> Flags:
    """Frames with gradients of a model that is deep enough."""
    out = batch.none()
    if len(matrices_of(batch.layout)) >= LEAST_MATRICES:
        out[batch.frames_with("gradient")] = True
    return out


class GradientSizes(Tracker):
    """The typical gradient element (root mean square) of every weight matrix; None where this frame does not tell."""

    wakes_on = Wake(with_depth)
    order = ("vanishing-gradient",)  # the whole depth goes before single layers

    def __init__(self) -> None:
        self.is_informed = False
        self.sizes: Values | None = None

    def follow(self, view: FrameView) -> None:
        matrices = matrices_of(view.layout)
        self.is_informed = not view.skipped and len(matrices) >= LEAST_MATRICES
        is_measured = self.is_informed and view.ids("gradient") is not None
        self.sizes = matrices.values(view, "gradient_rms") if is_measured else None


def logarithms(sizes: Values) -> Values:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log10(sizes)
