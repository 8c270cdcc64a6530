"""LSS003: the loss is an error with a minus sign."""

import math

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.loss_sign import LossSign
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import MIND_THE_SIGN
from undertow.schema import Evidence, LossKind, Severity


class NegatedLoss(Condition):
    """An error that cannot be negative is minimised with a minus sign.

    What it sees: The constant factor between a loss function that cannot be negative (cross-entropy, squared or
        absolute error, binary cross-entropy) and what backward was called on, read in the graph of the loss; and that
        the loss is negative, at two measured steps in a row. Between measurements, a loss of such a kind that has
        always been positive and drops in one step to about minus its size tells the same.
    Why it is bad: Every step makes the error larger, without a bound: the model learns to be wrong, then the weights
        overflow.
    When it is wrong: Rewards and likelihoods are meant to be negative and are not reported, nor are losses weighted by
        tensors, as in policy gradients, nor what an optimizer with `maximize=True` is given. A GAN's generator under
        the minimax loss raises an error on purpose: several optimizers that step in turn are not judged. Gradient
        ascent on purpose with a single optimizer (unlearning) is reported.
    References: Humbatova et al., "Taxonomy of Real Faults in Deep Learning Systems", 2020 (arXiv 1910.11015).
        Zhang et al., "AUTOTRAINER: An Automatic DNN Training Problem Detection and Repair System", 2021.
    """

    code, variant, formerly = "LSS003", "negated-loss", "sign"
    places = ("sign", "loss")
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    _sign = Shared(LossSign)
    meaning = "Training makes the error larger with every step"
    remedies = (MIND_THE_SIGN,)
    patience = Limit.chance(2, "measured steps: by then optimizers that step in turn have shown themselves")
    turned_to = Limit(0.5, "of minus the level before, and at most twice it: a term taken off carries it there slowly…")
    turned_from = Limit(0.2, "of the first loss: …and from near zero")

    def __init__(self) -> None:
        self._streak = Consecutive()
        self._maximizes = False  # the optimizer goes uphill: a minus is meant
        self._is_known = False  # the loss is of a kind that cannot be negative
        self._turned: bool | None = None  # whether the first loss below zero was about minus the level before

    def observe(self, view: FrameView) -> Judgement | None:
        loss = view.loss
        self._maximizes |= view.scalar("optimizer_maximizes") == 1
        if loss is None:
            return self.stay()
        if self._maximizes:
            return self.end()
        factor = view.scalar("loss_factor")
        if math.isnan(factor):
            return self._observe_drop(loss)
        self._is_known = view.scalar("loss_kind") != LossKind.UNKNOWN
        if factor >= 0 or not self._is_known or loss.value >= 0 or loss.actors > 1:
            self._streak.end()
            if not loss.positive:  # below zero with the right sign: what is differentiated holds more than an error
                self._turned = False
            return self.end()
        return self._hold(loss, factor)

    def _observe_drop(self, loss: Loss) -> Judgement | None:
        """The factor of this step was not measured, but the loss speaks."""
        if loss.positive:
            return None
        if self._turned is None:
            level, before = self._sign.level, self._sign.latest
            self._turned = -level / self.turned_to < loss.value < -self.turned_to * level
            self._turned &= level > self.turned_from * loss.start and before > self.turned_to * level
        too_early = loss.seen < self.patience + 3
        if not self._turned or not self._is_known or loss.actors > 1 or too_early or loss.value >= 0:
            return self.stay()
        return self._hold(loss, -1.0)

    def _hold(self, loss: Loss, factor: float) -> Judgement | None:
        if self._streak.hold(loss.step) < self.patience:
            return None
        return self.hold(None, lambda: self._describe(loss.value, factor))

    def _describe(self, value: float, factor: float) -> Judgement:
        evidence = (
            Evidence("loss_factor", None, factor, None, "constant factor between the error and what is minimised"),
            Evidence("loss", None, value, None, "below zero, where this error can never be"),
        )
        summary = f"The loss is an error times {factor:g}: minimising it makes the error as large as possible."
        return Judgement(Severity.SEVERE, (), self._streak.since, 0.97, summary, evidence)
