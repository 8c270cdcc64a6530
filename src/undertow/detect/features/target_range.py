"""Targets outside of what the last function of the model can put out, or of what the loss is made for."""

import math

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, having
from undertow.schema import LossKind

_BINARY = (LossKind.BINARY_OF_LOGITS, LossKind.BINARY_OF_PROBABILITIES)


class TargetsOutOfRange(Condition):
    """The base of two: read in the graph of the loss, so it is certain."""

    code = "LSS003"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    is_of_one_training = True
    wakes_on = having("targets_beyond_reach")
    of_probabilities: bool  # whether it is about losses whose targets are probabilities

    share = Limit(0.1, "of the targets' variance: noise around a limit is less")
    patience = Limit(2, "measured steps")

    def __init__(self) -> None:
        self._streak = Consecutive()

    def observe(self, view: FrameView) -> Judgement | None:
        share = view.scalar("targets_beyond_reach")
        if math.isnan(share):
            return self.stay()
        of_another_kind = (view.scalar("loss_kind") in _BINARY) != self.of_probabilities
        if of_another_kind or share < self.share or (view.loss is not None and view.loss.actors > 1):
            self._streak.end()
            return self.end()
        if self._streak.hold(view.step) < self.patience:
            return None
        return self.hold(None, lambda: self.describe(view, share))

    def describe(self, view: FrameView, share: float) -> Judgement:
        raise NotImplementedError
