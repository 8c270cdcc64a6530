"""OPT001: the loss grows and grows."""

import math

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.diverging_loss import DivergingLoss
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import CLIP_GRADIENTS, LOWER_LEARNING_RATE, WARM_UP
from undertow.schema import Evidence, Severity


class GrowingLoss(Condition):
    """The loss sets one record after the other.

    What it sees: A loss that again and again exceeds everything before it by a tenth, until its median is twice the
        highest of the first losses; or a cross-entropy that begins near chance level, and within its first steps is
        five times as high for nine losses in a row.
    Why it is bad: Training makes the model worse. It seldom comes back on its own, and often ends in NaN.
    When it is wrong: Losses that go below zero and optimizers that step in turn are left out. The loss of moving
        targets (values in reinforcement learning) grows with them: without a cross-entropy whose answers become wrong,
        large updates or a hundredfold growth this is only a hint. One jump to a higher level (harder data) is no row of
        records.
    References: Zhang et al., "AUTOTRAINER: An Automatic DNN Training Problem Detection and Repair System", 2021.
        Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023 (arXiv
        2309.14322).
    """

    code, variant, formerly = "OPT001", "growing-loss", "growing"
    stage, is_vague = Stage.COURSE, True
    _course = Shared(DivergingLoss)
    remedies = (LOWER_LEARNING_RATE, WARM_UP, CLIP_GRADIENTS)
    grown_to = Limit(2.0, "times the highest of the first losses, for the median of nine")
    at_once = Limit(5.0, "times the first loss and chance level, for nine losses in a row: no warm-up stays there…")
    at_once_within = Limit(40, "losses: …and no batch explains it, as the first steps alone can have made it")
    beyond_doubt = Limit(100.0, "times the first loss; less needs a witness, where targets may grow")
    explained_by = Limit(20, "steps for which a large update may explain a loss")

    def observe(self, view: FrameView) -> Judgement | None:
        course, loss = self._course, view.loss
        if loss is None:
            return self.stay()
        if not loss.positive or loss.actors > 1:
            return self.end()
        if loss.seen == 1:
            return None
        # The highest of the first losses is itself a record where a run explodes at once.
        base = min(course.highest_early, 2 * loss.first)
        if course.chance == course.chance:
            base = max(base, course.chance)
        if loss.level < self.grown_to * base:
            return self.end()
        knows_chance = course.knows_chance
        natural = max(loss.first, course.chance) if knows_chance else math.inf
        at_once = loss.low > self.at_once * natural and loss.seen <= self.at_once_within
        if not at_once and (len(course.records) < course.records_in_a_row or loss.noise > loss.level):
            return self.stay()
        first = course.records[0]
        is_sure = knows_chance or loss.level > self.beyond_doubt * loss.first
        is_sure = is_sure or course.large_step >= first - self.explained_by
        return self.hold(is_sure, lambda: self._describe(loss, first, is_sure))

    def _describe(self, loss: Loss, first: int, is_sure: bool) -> Judgement:
        evidence = Evidence("loss", None, loss.level, loss.first, "median of the latest losses, and the first one")
        summary = f"The loss grows: {loss.first:.3g} at the start, {loss.level:.3g} at step {loss.step}."
        severity, confidence = (Severity.SEVERE, 0.9) if is_sure else (Severity.MILD, 0.5)
        return Judgement(severity, (), first, confidence, summary, (evidence,))
