"""OPT007: a warm-up that never ends."""

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.learning_rate import LearningRate
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import RAISE_LEARNING_RATE
from undertow.schema import Evidence, Severity


class WarmUpNeverEnds(Condition):
    """The schedule never gives more than a fiftieth of the optimizer's learning rate, and nothing is learnt.

    What it sees: A largest rate below a fiftieth of the one the optimizer was made with, which no longer rises, or has
        not risen within sight; updates that are too small for any matrix; and a loss that has not fallen.
    Why it is bad: The model stays as it was initialised.
    When it is wrong: A training that is resumed late in its schedule has small rates as well, but its updates are long
        enough. A rate of 1 is there to be set by the schedule.
    References: Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017 (arXiv 1706.02677).
    """

    code, variant = "OPT007", "warm-up-never-ends"
    stage = Stage.OPTIMIZER
    _rate = Shared(LearningRate)
    meaning = "The learning rate, not the model, decides how this training goes"
    remedies = (RAISE_LEARNING_RATE,)

    def observe(self, view: FrameView) -> Judgement | None:
        rate, loss = self._rate, view.loss
        if loss is None or loss.actors == 2:
            return None
        if not rate.is_far_below_its_setting:
            return self.end()
        is_other = rate.is_squared or "schedule-scales-the-rate-away" in rate.open_variants
        if is_other or not rate.largest < rate.small_update or not rate.is_kept_small(loss):
            return self.stay()
        return self.hold(None, lambda: self._describe(view.step, loss))

    def _describe(self, step: int, loss: Loss) -> Judgement:
        history, made_with = self._rate.history, self._rate.made_with
        how = f"largest learning rate up to step {step}, and the one that the optimizer was made with"
        evidence = (
            Evidence("lr", None, history.peak, made_with, how),
            Evidence("loss", None, loss.level, loss.start, "what is left of the first loss"),
        )
        summary = (
            f"The warm-up does not end: after {history.steps} steps the learning rate has reached {history.peak:.3g} "
            f"of {made_with:.3g}, and the model does not learn."
        )
        return Judgement(Severity.SEVERE, (), self._rate.loss_begun, 0.8, summary, evidence)
