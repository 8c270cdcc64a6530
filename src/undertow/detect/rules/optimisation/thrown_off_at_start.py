"""OPT001: the first steps make a classifier worse than chance."""

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.diverging_loss import DivergingLoss
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import CLIP_GRADIENTS, LOWER_LEARNING_RATE, WARM_UP
from undertow.schema import Evidence, Severity


class ThrownOffAtStart(Condition):
    """The first steps have made a classifier worse than one that has learnt nothing.

    What it sees: A cross-entropy that begins near chance level, and within its first forty losses has a median of nine
        that is half as high again as the first one and as chance level, without growing further.
    Why it is bad: The first steps were too long: units may be dead, and the training starts from worse weights than it
        was given.
    When it is wrong: A healthy warm-up may leap once, and comes back within a few steps. What had learnt before, and
        has another task now, is not reported.
    References: Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023
        (arXiv 2309.14322).
    """

    code, variant, formerly = "OPT001", "thrown-off-at-start", "thrown"
    stage, is_vague = Stage.COURSE, True
    _course = Shared(DivergingLoss)
    remedies = (LOWER_LEARNING_RATE, WARM_UP, CLIP_GRADIENTS)
    thrown_to = Limit(1.5, "times the first loss and chance level, for the median of nine; 1.2 is the most in health")
    within = Limit(40, "losses: later, other steps than the first have made it")

    def __init__(self) -> None:
        self._has_grown = False

    def observe(self, view: FrameView) -> Judgement | None:
        course, loss = self._course, view.loss
        if loss is None:
            return self.stay()
        if not loss.positive or loss.actors > 1:
            return self.end()
        self._has_grown |= "growing-loss" in course.open_variants
        if self._has_grown or (course.records and loss.step - course.records[-1] < course.records_in_a_row):
            return self.end()  # it is still on its way up, or comes down from there
        if self._is_worse_than_chance(loss):
            return self.hold(None, lambda: self._describe(loss))
        return self.end() if loss.level < max(loss.first, course.chance) else self.stay()

    def _is_worse_than_chance(self, loss: Loss) -> bool:
        course = self._course
        if not course.first_losses <= loss.seen <= self.within or loss.best < course.learnt_to * loss.start:
            return False  # what had learnt is at another task now
        return course.knows_chance and loss.level > self.thrown_to * max(loss.first, course.chance)

    def _describe(self, loss: Loss) -> Judgement:
        evidence = Evidence("loss", None, loss.level, loss.first, "median of the latest losses, and the first one")
        summary = (
            f"The first steps threw the model off: its loss was {loss.first:.3g} before it had learnt anything, and is "
            f"{loss.level:.3g} after {loss.seen} steps."
        )
        return Judgement(Severity.MODERATE, (), 0, 0.7, summary, (evidence,))
