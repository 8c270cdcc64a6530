"""DAT003."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.features.module_structure import NONE
from undertow.detect.features.output_layer import output_layers
from undertow.detect.features.progress import has_learnt
from undertow.detect.rule import Verdict, Waiting
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind, LossReduction
from undertow.schema.severity import Severity

_OF_ERRORS = (LossKind.MEAN_SQUARE, LossKind.ABSOLUTE)
_RANGES = ("Sigmoid", "Tanh", "Softmax", "Hardsigmoid", "Hardtanh", "Softsign")  # all within one of zero
_NEVER_NEGATIVE = ("ReLU", "ReLU6", "Softplus")


class BadlyScaledTargets(Waiting):
    """Regression targets are so large that the model cannot reach them, or is torn apart trying.

    What it sees
    ------------
    The size of the targets against that of the first predictions, for losses that compare them element by element;
    where such a loss is written out by hand, the size of its first errors against the outputs of the last layer.
    Targets more than thirty times as large are reported once training suffers: when after forty steps nearly all of
    the loss is still there (most of it, where they are a thousand times as large), when the loss has grown tenfold or
    is no longer finite within that time, or when clipping takes nearly all of the gradient away. And at once where what
    comes last is a sigmoid or the like, as a module or as a function, whose range ends far below the targets, or a ReLU
    while the targets are below zero.

    Why it is bad
    -------------
    A model starts with outputs of about one. Under Adam, whose steps have a fixed length, outputs of a thousand take
    thousands of steps to reach; under plain gradient descent the gradient is as large as the error, and the first
    steps throw the weights away.

    When it is wrong
    ----------------
    Large targets alone are no fault: many models learn them well, and then nothing is said.

    References
    ----------
    LeCun et al., "Efficient BackProp", 1998, section 4.5.
    """

    code: ClassVar[str] = "DAT003"
    of_one_training: ClassVar[bool] = True
    waits_for: ClassVar[frozenset[str]] = frozenset({"target_mean", "loss_kind"})

    def __init__(self) -> None:
        self._ratio = math.nan  # targets over predictions, at the first step that shows both
        self._target = (math.nan, math.nan)
        self._error = math.nan  # of the first predictions, where the targets are not seen themselves
        self._bounded = NONE  # the output function, where its range ends far below the targets
        self._first_step = 0
        self._first_loss = math.nan  # of that step: a program that alternates losses compares like with like
        self._clipped = 0  # measured steps in a row
        self._latest = math.nan  # finite loss
        self._adaptive = True  # the optimizer scales gradients by itself, for all that is known
        self._condition = Condition("targets")

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return not self._ratio >= limit.LARGE_TARGETS

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if math.isnan(self._ratio) and not self._learn(view) and not self._learn_from_error(view):
            return ()
        if self._ratio < limit.LARGE_TARGETS or "loss" not in view.frame.scalars:
            return ()
        loss, elapsed = view.scalar("loss"), view.step - self._first_step
        trend = view.loss
        blown = not math.isfinite(loss) or loss > limit.TARGETS_BLOWN * abs(self._first_loss)
        # A loss that was falling and is suddenly not a number has another cause.
        blown &= not self._latest < limit.TARGETS_REMAINING * self._first_loss
        self._latest = loss if math.isfinite(loss) else self._latest
        # Of targets a thousand times as large hardly a part is reached for long.
        left = limit.TARGETS_REMAINING if self._ratio < limit.HUGE_TARGETS else limit.TARGETS_REMAINING_OF_HUGE
        stuck = trend is not None and elapsed >= limit.TARGETS_STEPS and trend.remaining > left
        stuck = stuck and (self._condition.is_open or loss > left * self._first_loss)
        if blown and elapsed <= limit.TARGETS_STEPS:
            return self._condition.hold(True, lambda: self._verdict(view, "the loss blows up"))
        if stuck:
            return self._condition.hold(True, lambda: self._verdict(view, "the loss hardly falls"))
        if self._bounded != NONE and elapsed >= 1 and not has_learnt(trend):
            harm = f"beyond the range of {view.layout.path(self._bounded)}"
            return self._condition.hold(True, lambda: self._verdict(view, harm))
        if self._is_clipped_away(view) and elapsed >= limit.TARGETS_CLIPPED_STEPS and not has_learnt(trend):
            return self._condition.hold(
                True, lambda: self._verdict(view, "clipping leaves next to nothing of the gradient")
            )
        if self._condition.is_open and math.isfinite(loss) and has_learnt(trend):
            return self._condition.end()
        return self._condition.stay()

    def _learn(self, view: FrameView) -> bool:
        mean, deviation = view.scalar("target_mean"), view.scalar("target_std")
        prediction = math.hypot(view.scalar("prediction_mean"), view.scalar("prediction_std"))
        if not (math.isfinite(mean) and math.isfinite(deviation) and prediction > 0):
            return False
        # Predictions that start near zero say nothing: a model's outputs start at about one at most.
        self._ratio = math.hypot(mean, deviation) / max(prediction, 0.1)
        self._target, self._first_step, self._first_loss = (mean, deviation), view.step, view.scalar("loss")
        if math.hypot(mean, deviation) > limit.TARGETS_BEYOND:
            self._find_bounds(view, below_zero=mean + deviation < 0)
        return True

    def _find_bounds(self, view: FrameView, below_zero: bool = False) -> None:
        """Where a function of a small range comes last, no training reaches targets beyond it."""
        layers = output_layers(view)
        if not layers:
            return
        kind = view.layout.layers[layers[0]].module_type
        by_function = np.isfinite(view.all_layers("activation_saturated_fraction")[layers[0]])
        if kind in _RANGES or by_function or (below_zero and kind in _NEVER_NEGATIVE):
            self._bounded, self._ratio = layers[0], max(self._ratio, limit.LARGE_TARGETS)

    def _learn_from_error(self, view: FrameView) -> bool:
        """Where the loss is written out by hand it tells the size of the first errors, and the last layer the rest."""
        kind, factor, loss = view.scalar("loss_kind"), view.scalar("loss_factor"), view.scalar("loss")
        layers = output_layers(view)
        if kind not in _OF_ERRORS or not factor > 0 or not loss > 0 or not layers or view.row("activation_std") is None:
            return False
        if view.scalar("loss_reduction") != LossReduction.MEAN or not math.isfinite(loss):
            return False
        output = math.hypot(*(float(view.all_layers(f"activation_{name}")[layers[0]]) for name in ("mean", "std")))
        if not 0 < output < math.inf:  # exactly zero: a dead output, or one that starts there
            return False
        error = loss / factor
        self._error = math.sqrt(error) if kind == LossKind.MEAN_SQUARE else error
        self._ratio = self._error / max(output, 0.1)
        self._first_step, self._first_loss = view.step, loss
        if self._error > limit.BEYOND_RANGE:
            self._find_bounds(view)
        return True

    def _is_clipped_away(self, view: FrameView) -> bool:
        """By an optimizer whose steps are as long as the gradient; Adam's are not."""
        adaptive = view.row("optimizer_eps_ratio")
        if adaptive is not None:
            self._adaptive = not np.isnan(adaptive).all()
        before, after = view.row("gradient_norm"), view.row("stepped_gradient_norm")
        if before is None or after is None:
            return False
        whole, left = float(np.nansum(np.square(before, dtype=float))), float(np.nansum(np.square(after, dtype=float)))
        if whole > 0 and math.isfinite(whole):
            self._clipped = self._clipped + 1 if left < whole * limit.CLIPPED_TO**2 else 0
        return self._clipped >= limit.TARGETS_CLIPPED and not self._adaptive

    def _verdict(self, view: FrameView, harm: str) -> Verdict:
        mean, deviation = self._target
        if math.isfinite(self._error):
            summary = (
                f"The first errors (about {self._error:.3g}) are {self._ratio:,.0f} times as large as the model's "
                f"outputs: the targets are not scaled, and {harm}."
            )
            evidence = (
                Evidence("loss", None, self._first_loss, None, f"the first errors are about {self._error:.3g}"),
            )
        else:
            summary = (
                f"The targets (mean {mean:.3g}, deviation {deviation:.3g}) are {self._ratio:,.0f} times as large as "
                f"the model's first outputs, and {harm}."
            )
            evidence = (
                Evidence("target_std", None, deviation, 1.0, "deviation of the targets"),
                Evidence("target_mean", None, mean, 0.0, "mean of the targets"),
            )
        layers = () if self._bounded == NONE else output_layers(view)
        return Verdict("targets", True, Severity.SEVERE, layers, self._first_step, 0.85, summary, evidence)
