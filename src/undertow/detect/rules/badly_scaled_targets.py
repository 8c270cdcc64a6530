"""DAT003."""

from __future__ import annotations

import math
from typing import ClassVar

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.rule import Verdict
from undertow.detect.view import View
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class BadlyScaledTargets:
    """Regression targets are so large that the model cannot reach them, or is torn apart trying.

    What it sees
    ------------
    The size of the targets against that of the first predictions, for losses that compare them element by element.
    Targets more than thirty times as large are reported once training suffers: when after forty steps nearly all of
    the loss is still there, or when the loss has grown tenfold or is no longer finite within that time.

    Why it is bad
    -------------
    A model starts with outputs of about one. Under Adam, whose steps have a fixed length, outputs of a thousand take
    thousands of steps to reach; under plain gradient descent the gradient is as large as the error, and the first
    steps throw the weights away.

    When it is wrong
    ----------------
    Large targets alone are no fault: many models learn them well, and then nothing is said.
    Measured: no false alarm in 161 healthy trainings (the zoo and the twins of the sick), two of which have such
    targets.

    References
    ----------
    LeCun et al., "Efficient BackProp", 1998, section 4.5.
    """

    code: ClassVar[str] = "DAT003"

    def __init__(self) -> None:
        self._ratio = math.nan  # targets over predictions, at the first step that shows both
        self._target = (math.nan, math.nan)
        self._first_step = 0
        self._first_loss = math.nan  # of that step: a program that alternates losses compares like with like
        self._condition = Condition("targets")

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def observe(self, view: View) -> tuple[Verdict, ...]:
        if math.isnan(self._ratio) and not self._learn(view):
            return ()
        if self._ratio < limit.LARGE_TARGETS or "loss" not in view.frame.scalars:
            return ()
        loss, elapsed = view.scalar("loss"), view.step - self._first_step
        trend = view.loss
        blown = not math.isfinite(loss) or loss > limit.TARGETS_BLOWN * abs(self._first_loss)
        stuck = trend is not None and elapsed >= limit.TARGETS_STEPS and trend.remaining > limit.TARGETS_REMAINING
        stuck = stuck and (self._condition.is_open or loss > limit.TARGETS_REMAINING * self._first_loss)
        if blown and elapsed <= limit.TARGETS_STEPS:
            return self._condition.hold(True, lambda: self._verdict("the loss blows up"))
        if stuck:
            return self._condition.hold(True, lambda: self._verdict("the loss hardly falls"))
        if self._condition.is_open and math.isfinite(loss):
            return self._condition.end()
        return self._condition.stay()

    def _learn(self, view: View) -> bool:
        mean, deviation = view.scalar("target_mean"), view.scalar("target_std")
        prediction = math.hypot(view.scalar("prediction_mean"), view.scalar("prediction_std"))
        if not (math.isfinite(mean) and math.isfinite(deviation) and prediction > 0):
            return False
        # Predictions that start near zero say nothing: a model's outputs start at about one at most.
        self._ratio = math.hypot(mean, deviation) / max(prediction, 0.1)
        self._target, self._first_step, self._first_loss = (mean, deviation), view.step, view.scalar("loss")
        return True

    def _verdict(self, harm: str) -> Verdict:
        mean, deviation = self._target
        summary = (
            f"The targets (mean {mean:.3g}, deviation {deviation:.3g}) are {self._ratio:,.0f} times as large as the "
            f"model's first outputs, and {harm}."
        )
        evidence = (
            Evidence("target_std", None, deviation, 1.0, "deviation of the targets"),
            Evidence("target_mean", None, mean, 0.0, "mean of the targets"),
        )
        return Verdict("targets", True, Severity.SEVERE, (), self._first_step, 0.85, summary, evidence)
