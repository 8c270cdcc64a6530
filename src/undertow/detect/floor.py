"""A loss that nothing holds: by its form, or because it falls below zero ever faster."""

from __future__ import annotations

import math
from itertools import pairwise

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.features.loss_trend import Loss
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import Floor as Form
from undertow.schema.severity import Severity

_FORMS = {
    Form.EXPONENTIAL: (
        "a value and its exponential both stand in the loss, and both make it smaller the same way",
        "a log-scale (or a log-determinant) has the wrong sign, so that it and its exponential fall together.",
    ),
    Form.REWARDS_ERRORS: (
        "squared errors inside of a density stand in the loss with a minus sign",
        "it makes the targets as unlikely as it can. Minimise the negative log-likelihood.",
    ),
    Form.REWARDS_WEIGHTS: (
        "squares or absolute values of weights stand in the loss with a minus sign",
        "a penalty on the weights is subtracted, so that they grow for ever. Add it.",
    ),
    Form.REWARDS_NORMALISER: (
        "the squared logarithm of a softmax's normaliser stands in the loss with a minus sign",
        "the penalty that keeps logits small is subtracted, so that they grow for ever. Add it.",
    ),
    Form.LOWERS_LIKELIHOOD: (
        "log-probabilities that targets pick stand in the loss with a plus",
        "it makes the right answers as unlikely as it can. Minimise the negative logarithm.",
    ),
    Form.PUNISHES_OVERLAP: (
        "the overlap of the prediction with its mask (Dice, or intersection over union) stands in the loss with a plus",
        "it grows with the overlap of prediction and mask, so that the model learns to miss. Minimise one minus it.",
    ),
}

_WHAT = dict.fromkeys(_FORMS, "The loss has no floor") | dict.fromkeys(
    (Form.PUNISHES_OVERLAP, Form.LOWERS_LIKELIHOOD), "The loss has the wrong sign"
)


class Floor:
    """Of one training; of adversaries that step in turn nothing is said."""

    def __init__(self) -> None:
        self._condition = Condition("floor")
        self._formed = 0  # measured steps in a row
        self._form = Form.NONE
        self._since = 0
        self._size = 0.0  # of the first losses
        self._doublings: list[int] = []  # steps at which the loss was twice as far below zero as at the one before

    @property
    def resting(self) -> bool:
        """Nothing is open, and a loss above zero will not change that."""
        doubled = len(self._doublings) >= limit.FLOOR_DOUBLINGS
        return self._formed < limit.FLOOR_PATIENCE and not doubled and not self._condition.is_open

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        formed = view.scalar("loss_without_floor")
        if not math.isnan(formed):
            if self._formed == 0:
                self._since = view.step
            self._formed, self._form = self._formed + 1 if formed else 0, formed
        if view.loss is not None and view.loss.actors > 1:
            return self._condition.end()
        if self._formed >= limit.FLOOR_PATIENCE:
            return self._condition.hold(self._form, self._verdict_of_form)
        if view.loss is not None and self._falls_for_ever(view.loss):
            level = view.loss.level
            return self._condition.hold("fall", lambda: self._verdict_of_fall(level))
        return self._condition.stay() if math.isnan(formed) else self._condition.end()

    def _falls_for_ever(self, loss: Loss) -> bool:
        if loss.seen <= limit.FLOOR_SEEN:
            self._size = max(abs(loss.first), abs(loss.start), 4 * loss.noise)
        if loss.seen < limit.FLOOR_SEEN or not self._size > 0:
            return False
        while loss.level < -self._size * 2 ** (len(self._doublings) + 1):
            self._doublings.append(loss.step)
        latest = self._doublings[-limit.FLOOR_DOUBLINGS :]
        if len(latest) < limit.FLOOR_DOUBLINGS:
            return False
        waits = [after - before for before, after in pairwise(latest)]
        steady = all(after <= limit.FLOOR_SLOWER * before for before, after in pairwise(waits))
        return steady and min(waits) >= limit.FLOOR_FEWEST_STEPS

    def _verdict_of_form(self) -> Verdict:
        how, why = _FORMS[self._form]
        evidence = Evidence("loss_without_floor", None, self._form, Form.NONE, how)
        return Verdict("floor", True, Severity.SEVERE, (), self._since, 0.9, f"{_WHAT[self._form]}: {why}", (evidence,))

    def _verdict_of_fall(self, level: float) -> Verdict:
        how = f"it has doubled {len(self._doublings)} times below zero, each time as fast as the time before"
        summary = "The loss falls below zero ever faster: nothing holds it. Look for a term with the wrong sign."
        evidence = Evidence("loss", None, level, 0.0, how)
        return Verdict("floor", True, Severity.SEVERE, (), self._doublings[0], 0.8, summary, (evidence,))
