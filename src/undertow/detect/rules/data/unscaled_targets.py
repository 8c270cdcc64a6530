"""DAT003: regression targets that are not scaled, or beyond the range of the output function."""

import math
from collections.abc import Sequence

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.module_structure import NONE
from undertow.detect.features.output_layer import output_layers
from undertow.detect.features.progress import has_learnt
from undertow.schema import Evidence, Finding, LossKind, LossReduction, Remedy, Severity

_OF_ERRORS = (LossKind.MEAN_SQUARE, LossKind.ABSOLUTE)
_RANGES = ("Sigmoid", "Tanh", "Softmax", "Hardsigmoid", "Hardtanh", "Softsign")  # all within one of zero
_NEVER_NEGATIVE = ("ReLU", "ReLU6", "Softplus")

_SCALE_THE_TARGETS = Remedy(
    "scale-the-targets",
    "Standardise the targets for training, and scale predictions back for use.",
    "mean, std = targets.mean(0), targets.std(0).clamp_min(1e-6)\n"
    "loss = torch.nn.functional.mse_loss(output, (targets - mean) / std)\n"
    "prediction = output * std + mean",
    "The loss is in other units: compare it with care.",
    when_not="The targets are classes or counts with a loss of their own.",
)


_DROP_THE_OUTPUT_FUNCTION = Remedy(
    "drop-the-output-function",
    "Leave the last layer without an activation, so that predictions can take any value.",
    "prediction = head(hidden)  # not torch.sigmoid(head(hidden))",
    "Predictions are no longer bounded.",
    when_not="The targets are probabilities: then check how they are made.",
)


class UnscaledTargets(Condition):
    """Regression targets are so large that the model cannot reach them, or is torn apart trying.

    What it sees: The size of the targets against that of the first predictions, for losses that compare them element by
        element; where such a loss is written by hand, that of its first errors against the outputs of the last layer.
        Targets thirty times as large are reported once training suffers: when after forty steps nearly all of the loss
        is still there (most of it, where they are a thousand times as large), when it has grown tenfold or is no longer
        finite, or when clipping takes nearly all of the gradient away. And targets beyond the range of what comes last:
        a sigmoid, tanh or the like, or a ReLU while they are below zero.
    Why it is bad: A model starts with outputs of about one. Under Adam, whose steps have a fixed length, outputs of a
        thousand take thousands of steps to reach; under plain gradient descent the gradient is as large as the error,
        and the first steps throw the weights away. Beyond its range a function saturates, and its gradient vanishes.
    When it is wrong: Large targets alone are no fault: many models learn them well, and then nothing is said.
    References: LeCun et al., "Efficient BackProp", 1998, section 4.5.
    """

    code, variant, formerly = "DAT003", "unscaled-targets", "targets unreachable-targets"
    places = ("target",)
    stage, is_standing, is_told_by_harm = Stage.DATA, True, True
    wakes_on = having("target_mean", "loss_kind")
    is_of_one_training = True
    meaning = "Errors as large as the targets make gradients as large, whatever the model does"
    remedies = (_SCALE_THE_TARGETS, _DROP_THE_OUTPUT_FUNCTION)

    large = Limit(30.0, "targets over first predictions, root mean squares; a hundred is learnt well by most nets")
    patience = Limit.learning(40, "steps after which a loss has begun to fall in health")
    remaining = Limit(0.95, "of the first loss still there then: at most 0.85 in healthy trainings")
    huge = Limit(1_000.0, "targets over first predictions: hardly a part of them is reached for long")
    remaining_of_huge = Limit(0.8, "of the first loss, for those")
    learnt_once = Limit(0.5, "of the first losses, for the lowest: what brings the loss back then is another fault")
    blown_up = Limit(10.0, "times the first loss")
    clipped_to = Limit(0.02, "of the gradient, that clipping leaves; recurrent trainings clip to a tenth every day")
    clipped_for = Limit.chance(5, "measured steps in a row")
    clipped_after = Limit.start(20, "steps from the start: first gradients are large in health, too")
    beyond_range = Limit(2.0, "root mean square of targets, where the output function ends within one of zero")
    error_beyond_range = Limit(5.0, "mean error, where the targets are not known themselves")
    least_output = Limit(0.1, "predictions that start nearer to zero say nothing about the model's scale")

    def __init__(self) -> None:
        self._bounded = NONE  # the output function, where its range ends far below the targets
        self._first_step = 0
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

    def observe(self, view: FrameView) -> Judgement | None:
        if math.isnan(self._ratio) and not self._learn(view) and not self._learn_from_error(view):
            return None
        if self._ratio < self.large or "loss" not in view.frame.scalars:
            return None
        loss = view.scalar("loss")
        harm = self._harm(view, loss, view.step - self._first_step)
        if harm:
            return self.hold(True, lambda: self._describe(view, harm))
        return self.end() if math.isfinite(loss) and has_learnt(view.loss) else self.stay()

    def _harm(self, view: FrameView, loss: float, elapsed: int) -> str:
        """What large targets do to the training at this frame, in words; empty while they do none."""
        trend = view.loss
        blown = not math.isfinite(loss) or loss > self.blown_up * abs(self._first_loss)
        # A loss that was falling and is suddenly not a number has another cause.
        blown &= not self._latest < self.remaining * self._first_loss
        self._latest = loss if math.isfinite(loss) else self._latest
        if blown and elapsed <= self.patience:
            return "the loss blows up"
        left = self.remaining if self._ratio < self.huge else self.remaining_of_huge
        stuck = trend is not None and elapsed >= self.patience and trend.remaining > left
        stuck &= trend is not None and trend.best > self.learnt_once * trend.start
        if stuck and (self.is_open or loss > left * self._first_loss):
            return "the loss hardly falls"
        if self._bounded != NONE and elapsed >= 1 and not has_learnt(trend):
            return f"{view.layout.path(self._bounded)} cannot put out as much"
        if self._is_clipped_away(view) and elapsed >= self.clipped_after and not has_learnt(trend):
            return "clipping leaves next to nothing of the gradient"
        return ""

    def _describe(self, view: FrameView, harm: str) -> Judgement:
        mean, deviation = self._target
        times = f"are {self._ratio:,.0f} times the model's"
        if math.isfinite(self._error):
            size, how = f"The first errors (about {self._error:.3g}) {times}", "loss of the first errors"
            evidence = (Evidence("loss", None, self._first_loss, None, how),)
        else:
            size = f"The targets (mean {mean:.3g}, deviation {deviation:.3g}) {times} first"
            evidence = (
                Evidence("target_std", None, deviation, 1.0, "deviation of the targets"),
                Evidence("target_mean", None, mean, 0.0, "mean of the targets"),
            )
        layers, why = (), f"they are not scaled, and {harm}"
        if self._bounded != NONE:
            layers, why = output_layers(view), f"they lie beyond the range of {view.layout.path(self._bounded)}"
        return Judgement(Severity.SEVERE, layers, self._first_step, 0.85, f"{size} outputs: {why}.", evidence)

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        return cls.remedies if finding.layers else cls.remedies[:1]

    def _learn(self, view: FrameView) -> bool:
        mean, deviation = view.scalar("target_mean"), view.scalar("target_std")
        prediction = math.hypot(view.scalar("prediction_mean"), view.scalar("prediction_std"))
        if not (math.isfinite(mean) and math.isfinite(deviation) and prediction > 0):
            return False
        # Predictions that start near zero say nothing: a model's outputs start at about one at most.
        self._ratio = math.hypot(mean, deviation) / max(prediction, self.least_output)
        self._target, self._first_step, self._first_loss = (mean, deviation), view.step, view.scalar("loss")
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
            self._bounded, self._ratio = layers[0], max(self._ratio, self.large)

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
        self._first_step, self._first_loss = view.step, loss
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
