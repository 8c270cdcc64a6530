"""Regression targets beside what the model puts out at the start, and whether training suffers from their size."""

import math

import numpy as np

from undertow.detect.engine import FrameView, Limit, Tracker, having
from undertow.detect.features.module_structure import NONE
from undertow.detect.features.output_layer import output_layers
from undertow.detect.features.progress import has_learnt
from undertow.schema import Evidence, LossKind, LossReduction, Remedy

_OF_ERRORS = (LossKind.MEAN_SQUARE, LossKind.ABSOLUTE)
_RANGES = ("Sigmoid", "Tanh", "Softmax", "Hardsigmoid", "Hardtanh", "Softsign")  # all within one of zero
_NEVER_NEGATIVE = ("ReLU", "ReLU6", "Softplus")

SCALE_THE_TARGETS = Remedy(
    "scale-the-targets",
    "Standardise the targets for training, and scale predictions back for use.",
    "mean, std = targets.mean(0), targets.std(0).clamp_min(1e-6)\n"
    "loss = torch.nn.functional.mse_loss(output, (targets - mean) / std)\n"
    "prediction = output * std + mean",
    "The loss is in other units: compare it with care.",
    when_not="The targets are classes or counts with a loss of their own.",
)


class TargetScale(Tracker):
    """`harm` says what large targets do to the training at this frame, in words; empty while they do none.

    `bounded` is the output function where its range ends far below the targets.
    """

    wakes_on = having("target_mean", "loss_kind")
    is_of_one_training = True

    large = Limit(30.0, "targets over first predictions, root mean squares; a hundred is learnt well by most nets")
    patience = Limit(40, "steps after which a loss has begun to fall in health, whatever the length of the run")
    remaining = Limit(0.95, "of the first loss still there then: at most 0.85 in healthy trainings")
    huge = Limit(1_000.0, "targets over first predictions: hardly a part of them is reached for long")
    remaining_of_huge = Limit(0.8, "of the first loss, for those")
    blown_up = Limit(10.0, "times the first loss")
    clipped_to = Limit(0.02, "of the gradient, that clipping leaves; recurrent trainings clip to a tenth every day")
    clipped_for = Limit(5, "measured steps in a row")
    clipped_after = Limit(20, "steps from the start: first gradients are large in health, too")
    beyond_range = Limit(2.0, "root mean square of targets, where the output function ends within one of zero")
    error_beyond_range = Limit(5.0, "mean error, where the targets are not known themselves")
    least_output = Limit(0.1, "predictions that start nearer to zero say nothing about the model's scale")

    def __init__(self) -> None:
        self.bounded = NONE
        self.first_step = 0
        self.harm, self.is_over, self.is_told = "", False, False
        self._ratio = math.nan  # targets over predictions, at the first step that shows both
        self._target = (math.nan, math.nan)
        self._error = math.nan  # of the first predictions, where the targets are not seen themselves
        self._first_loss = math.nan  # of that step: a program that alternates losses compares like with like
        self._clipped = 0  # measured steps in a row
        self._latest = math.nan  # finite loss
        self._adaptive = True  # the optimizer scales gradients by itself, for all that is known

    @property
    def is_calm(self) -> bool:
        return not self._ratio >= self.large

    def follow(self, view: FrameView) -> None:
        self.harm, self.is_over, self.is_told = "", False, False
        if math.isnan(self._ratio) and not self._learn(view) and not self._learn_from_error(view):
            return
        if self._ratio < self.large or "loss" not in view.frame.scalars:
            return
        self.is_told = True
        loss, trend = view.scalar("loss"), view.loss
        self.harm = self._harm(view, loss, view.step - self.first_step)
        self.is_over = not self.harm and math.isfinite(loss) and has_learnt(trend)

    def _harm(self, view: FrameView, loss: float, elapsed: int) -> str:
        trend = view.loss
        blown = not math.isfinite(loss) or loss > self.blown_up * abs(self._first_loss)
        # A loss that was falling and is suddenly not a number has another cause.
        blown &= not self._latest < self.remaining * self._first_loss
        self._latest = loss if math.isfinite(loss) else self._latest
        if blown and elapsed <= self.patience:
            return "the loss blows up"
        left = self.remaining if self._ratio < self.huge else self.remaining_of_huge
        stuck = trend is not None and elapsed >= self.patience and trend.remaining > left
        if stuck and (self.open_variants or loss > left * self._first_loss):
            return "the loss hardly falls"
        if self.bounded != NONE and elapsed >= 1 and not has_learnt(trend):
            return f"{view.layout.path(self.bounded)} cannot put out as much"
        if self._is_clipped_away(view) and elapsed >= self.clipped_after and not has_learnt(trend):
            return "clipping leaves next to nothing of the gradient"
        return ""

    def sentence(self) -> str:
        """The size of the targets beside that of the outputs."""
        if math.isfinite(self._error):
            return f"The first errors (about {self._error:.3g}) are {self._ratio:,.0f} times the model's outputs"
        mean, deviation = self._target
        return (
            f"The targets (mean {mean:.3g}, deviation {deviation:.3g}) are {self._ratio:,.0f} times the model's first "
            "outputs"
        )

    def evidence(self) -> tuple[Evidence, ...]:
        if math.isfinite(self._error):
            return (Evidence("loss", None, self._first_loss, None, f"the first errors are about {self._error:.3g}"),)
        mean, deviation = self._target
        return (
            Evidence("target_std", None, deviation, 1.0, "deviation of the targets"),
            Evidence("target_mean", None, mean, 0.0, "mean of the targets"),
        )

    def _learn(self, view: FrameView) -> bool:
        mean, deviation = view.scalar("target_mean"), view.scalar("target_std")
        prediction = math.hypot(view.scalar("prediction_mean"), view.scalar("prediction_std"))
        if not (math.isfinite(mean) and math.isfinite(deviation) and prediction > 0):
            return False
        # Predictions that start near zero say nothing: a model's outputs start at about one at most.
        self._ratio = math.hypot(mean, deviation) / max(prediction, self.least_output)
        self._target, self.first_step, self._first_loss = (mean, deviation), view.step, view.scalar("loss")
        if math.hypot(mean, deviation) > self.beyond_range:
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
            self.bounded, self._ratio = layers[0], max(self._ratio, self.large)

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
        self._ratio = self._error / max(output, self.least_output)
        self.first_step, self._first_loss = view.step, loss
        if self._error > self.error_beyond_range:
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
            self._clipped = self._clipped + 1 if left < whole * self.clipped_to**2 else 0
        return self._clipped >= self.clipped_for and not self._adaptive
