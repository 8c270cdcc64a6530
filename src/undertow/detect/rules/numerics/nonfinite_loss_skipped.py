"""NUM002: the loss was NaN or infinite at a step that did not count."""

import math

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Stage, where_scalar
from undertow.detect.features.nonfinite_outputs import nonfinite_loss
from undertow.schema import Severity


class NonfiniteLossSkipped(Condition):
    """The loss was NaN or infinite, and a loss scaler skipped the step.

    What it sees: A loss that is not finite at a step that the loss scaler skipped.
    Why it is bad: It is not: the weights never saw its gradient. This is a remark, never an alarm.
    When it is wrong: The value is exact.
    References: PyTorch documentation, "Automatic Mixed Precision examples".
    """

    code, variant, formerly = "NUM002", "nonfinite-loss-skipped", "skipped"
    stage, is_exact = Stage.NONFINITE, True
    meaning = "The step was skipped, so the weights are as they were"
    needs = frozenset({"loss"})
    wakes_on = where_scalar("loss", lambda loss: ~np.isfinite(loss))

    def observe(self, view: FrameView) -> Judgement | None:
        loss = view.frame.scalars.get("loss")
        if loss is None:
            return None
        if math.isfinite(loss):
            return self.end()
        return self.hold(True, lambda: self._describe(view, loss)) if view.skipped else None

    def _describe(self, view: FrameView, loss: float) -> Judgement:
        sentence, layers, evidence = nonfinite_loss(view, loss)
        summary = f"{sentence}; the loss scaler skipped the step."
        return Judgement(Severity.INFO, layers, view.step, 1.0, summary, evidence)
