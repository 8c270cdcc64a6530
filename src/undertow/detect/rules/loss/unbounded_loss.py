"""LSS003: nothing keeps the loss from falling for ever."""

import math
from itertools import pairwise

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.loss_sign import FIRST_LOSSES, LossSign
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import TURN_THE_TERM
from undertow.schema import Evidence, Floor, Severity

# How each form was seen in the graph of the loss, and what it means.
_FORMS = {
    Floor.EXPONENTIAL: (
        "a value and its exponential are both in the loss, and both lower it",
        "The loss has no floor: a log-scale (or a log-determinant) has the wrong sign, so that it and its exponential "
        "fall together.",
    ),
    Floor.REWARDS_ERRORS: (
        "squared errors inside of a density stand in the loss with a minus sign",
        "The loss has no floor: it makes the targets as unlikely as it can. Minimise the negative log-likelihood.",
    ),
    Floor.REWARDS_WEIGHTS: (
        "squares or absolute values of weights stand in the loss with a minus sign",
        "The loss has no floor: a penalty on the weights is subtracted, so that they grow for ever. Add it.",
    ),
    Floor.REWARDS_NORMALISER: (
        "the squared logarithm of a softmax's normaliser stands in the loss with a minus sign",
        "The loss has no floor: the penalty that keeps logits small is subtracted, so that they grow for ever. Add it.",
    ),
    Floor.LOWERS_LIKELIHOOD: (
        "log-probabilities that targets pick stand in the loss with a plus",
        "The loss has the wrong sign: it makes the targets as unlikely as possible. Minimise the negative logarithm.",
    ),
    Floor.PUNISHES_OVERLAP: (
        "the overlap of the prediction with its mask (Dice, or intersection over union) stands in the loss with a plus",
        "The loss has the wrong sign: it grows with the overlap of prediction and mask, so that the model learns to "
        "miss. Minimise one minus it.",
    ),
}


class UnboundedLoss(Condition):
    """The loss has no lower bound: a term of it has the wrong sign.

    What it sees: The form of the loss, in its graph: a value and its exponential that fall together where they must
        pull against each other (the log-determinant of a flow, the logarithm of a deviation); a penalty or a density
        that is subtracted; the overlap with a mask (Dice, intersection over union) or picked log-probabilities that are
        minimised. Or a loss far below zero that falls ever faster.
    Why it is bad: Training follows the wrong term without a bound, and what the other terms ask for no longer counts.
    When it is wrong: Likelihoods fall below zero, too, but take longer for every doubling. Adversaries that step in
        turn (a GAN) are not judged.
    References: Humbatova et al., "Taxonomy of Real Faults in Deep Learning Systems", 2020 (arXiv 1910.11015).
    """

    code, variant, formerly = "LSS003", "unbounded-loss", "floor"
    places = ("sign", "total")
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    _sign = Shared(LossSign)
    meaning = "The loss rewards the wrong thing, and that is what the model learns"
    remedies = (TURN_THE_TERM,)
    patience = Limit.chance(2, "measured steps with such a form")
    doublings = Limit(4, "of the distance below zero; likelihoods take longer for every one")
    slower = Limit(1.2, "times the steps of the doubling before: as fast as that one")
    fewest_steps = Limit.memory(4, "losses to a doubling: the level is a median of nine, and lags by about as many")

    def __init__(self) -> None:
        self._formed = 0  # measured steps in a row
        self._form: float = Floor.NONE
        self._since = 0
        self._size = 0.0  # of the first losses
        self._doubled: list[int] = []  # steps at which the loss was twice as far below zero as at the one before

    @property
    def is_calm(self) -> bool:
        return self._formed < self.patience and len(self._doubled) < self.doublings and not self.is_open

    def observe(self, view: FrameView) -> Judgement | None:
        if "negated-loss" in self._sign.open_variants:
            return None
        formed = view.scalar("loss_without_floor")
        if not math.isnan(formed):
            if self._formed == 0:
                self._since = view.step
            self._formed, self._form = self._formed + 1 if formed else 0, formed
        if view.loss is not None and view.loss.actors > 1:
            return self.end()
        if self._formed >= self.patience:
            return self.hold(self._form, self._describe_form)
        if view.loss is not None and self._falls_for_ever(view.loss):
            level = view.loss.level
            return self.hold("fall", lambda: self._describe_fall(level))
        return self.stay() if math.isnan(formed) else self.end()

    def _falls_for_ever(self, loss: Loss) -> bool:
        if loss.seen <= FIRST_LOSSES:
            self._size = max(abs(loss.first), abs(loss.start), 4 * loss.noise)
        if loss.seen < FIRST_LOSSES or not self._size > 0:
            return False
        while loss.level < -self._size * 2 ** (len(self._doubled) + 1):
            self._doubled.append(loss.step)
        latest = self._doubled[-int(self.doublings) :]
        if len(latest) < self.doublings:
            return False
        waits = [after - before for before, after in pairwise(latest)]
        is_steady = all(after <= self.slower * before for before, after in pairwise(waits))
        return is_steady and min(waits) >= self.fewest_steps

    def _describe_form(self) -> Judgement:
        how, summary = _FORMS[self._form]
        evidence = Evidence("loss_without_floor", None, self._form, Floor.NONE, how)
        return Judgement(Severity.SEVERE, (), self._since, 0.9, summary, (evidence,))

    def _describe_fall(self, level: float) -> Judgement:
        how = f"it has doubled {len(self._doubled)} times below zero, each time as fast as the time before"
        summary = "The loss falls below zero ever faster: it has no lower bound. Look for a term with the wrong sign."
        evidence = Evidence("loss", None, level, 0.0, how)
        return Judgement(Severity.SEVERE, (), self._doubled[0], 0.8, summary, (evidence,))
