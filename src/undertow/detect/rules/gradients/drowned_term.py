"""GRD009: another term of the loss drowns the error of the predictions."""

import math

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.remedies import BALANCE_THE_TERMS
from undertow.schema import Evidence, LossKind, LossReduction, Severity

_OF_LABELS = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)


class DrownedTerm(Condition):
    """The error of the predictions is next to nothing beside the other terms of the loss, before any of it is learnt.

    What it sees: The loss function that compares predictions with targets, its constant factor in the loss, and how
        large it can be at most: of numbers by the means and deviations of both, of labels by three times the chance
        level, while the predictions are unsure. Reported when that is less than a three-hundredth of the loss at five
        measured steps, from the first of a training on.
    Why it is bad: The gradient of a penalty, a balance or an auxiliary term that is hundreds of times larger is all
        that the optimizer sees, and gradient clipping takes away what is left of the task.
    When it is wrong: A term may be large and constant, so that it has no gradient; or the error may be a small
        auxiliary one on purpose. An error that becomes small later has been learnt, and is not reported.
    References: Chen et al., "GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask
        Networks", 2018 (arXiv 1711.02257).
    """

    code, variant = "GRD009", "drowned-term"
    places = ("total", "loss")
    stage, is_of_one_training = Stage.STEP, True
    wakes_on = having("loss_kind")
    meaning = "One part of the loss is learnt at the cost of the others"
    remedies = (BALANCE_THE_TERMS,)

    share = Limit(1 / 300, "of the loss, that the error is at most; a fiftieth in healthy trainings")
    patience = Limit.chance(5, "measured steps in a row, from the first on")
    of_chance = Limit(3.0, "times the chance level, for the error of predictions that are unsure")
    unsure = Limit(0.7, "mean of the largest probability: beyond it a wrong answer may cost any amount")

    def __init__(self) -> None:
        self._behind = Consecutive()
        self._is_heard = False  # it was a part of the loss at some step: what shrinks later has been learnt

    def observe(self, view: FrameView) -> Judgement | None:
        largest, loss = self._largest_error(view), view.loss
        if self._is_heard or loss is None or loss.actors > 1 or math.isnan(largest):
            return self.stay()
        if not 0 < largest < self.share * loss.value:
            self._is_heard = not self.is_open
            return self.stay()
        if self._behind.hold(view.step) < self.patience:
            return self.stay()
        return self.hold(True, lambda: self._describe(largest, loss.value))

    def _largest_error(self, view: FrameView) -> float:
        """What the error that was recognised adds to the loss at most; NaN where that is not known."""
        kind, factor = view.scalar("loss_kind"), abs(view.scalar("loss_factor"))
        if view.scalar("loss_reduction") != LossReduction.MEAN:
            return math.nan
        if kind in _OF_LABELS:
            classes, is_unsure = view.scalar("loss_classes"), view.scalar("output_max_probability") < self.unsure
            return factor * self.of_chance * math.log(classes) if classes > 1 and is_unsure else math.nan
        off = view.scalar("prediction_mean") - view.scalar("target_mean")
        error = math.hypot(off, view.scalar("prediction_std") + view.scalar("target_std"))
        if kind == LossKind.MEAN_SQUARE:
            return factor * error**2
        return factor * error if kind == LossKind.ABSOLUTE else math.nan

    def _describe(self, largest: float, loss: float) -> Judgement:
        how = "the largest that the error of the predictions can be, and the whole loss"
        evidence = (Evidence("loss", None, largest, loss, how),)
        summary = (
            f"The error of the predictions is at most {largest:.2g} of a loss of {loss:.3g}: the other terms, "
            f"{loss / largest:,.0f} times as large, drown it."
        )
        return Judgement(Severity.MODERATE, (), self._behind.since, 0.7, summary, evidence)
