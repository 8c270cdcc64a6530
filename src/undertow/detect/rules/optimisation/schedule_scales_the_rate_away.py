"""OPT007: the schedule keeps the learning rate far below the one the optimizer was made with."""

from collections.abc import Sequence

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.learning_rate import LearningRate
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import RAISE_LEARNING_RATE
from undertow.schema import Evidence, Finding, Remedy, Severity

_RETURN_A_FACTOR = Remedy(
    "return-a-factor",
    "Let the schedule return a factor of the learning rate, not a rate: the two are multiplied.",
    "def factor(step: int) -> float:\n"
    "    return min(1.0, (step + 1) / 100)  # 1 is the rate of the optimizer\n"
    "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)",
    "None.",
    when_not="The optimizer was made with a rate of 1 so that the schedule can set it.",
)


class ScheduleScalesTheRateAway(Condition):
    """The schedule never gives more than a fiftieth of the optimizer's learning rate, and nothing is learnt.

    What it sees: A largest rate below a fiftieth of the one the optimizer was made with, which no longer rises, or has
        not risen within sight, while nothing is learnt. It is the square of that one where the schedule returns a rate
        instead of a factor; else updates must be too small for any matrix, as in a warm-up that never ends.
    Why it is bad: The model stays as it was initialised: a rate of 1e-3 times 1e-3 moves nothing.
    When it is wrong: A training that is resumed late in its schedule has small rates as well, but its updates are long
        enough. A rate of 1 is there to be set by the schedule.
    References: PyTorch documentation, `torch.optim.lr_scheduler.LambdaLR`.
        Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017 (arXiv 1706.02677).
    """

    code, variant = "OPT007", "schedule-scales-the-rate-away"
    places = ("schedule", "rate change")
    formerly = "share low warm-up-never-ends learning-rate-too-low"
    stage = Stage.OPTIMIZER
    _rate = Shared(LearningRate)
    meaning = "The learning rate, not the model, decides how this training goes"
    remedies = (_RETURN_A_FACTOR, RAISE_LEARNING_RATE)

    settled = Limit.plan(5, "steps without a rise: a warm-up rises at every one")
    flat_after = Limit.learning(60, "losses: healthy trainings have left their first loss by then")
    flat_above = Limit(0.98, "of the first losses")
    flat_gain = Limit(3.0, "deviations of a single loss, between the start and the latest nine")

    def observe(self, view: FrameView) -> Judgement | None:
        rate, loss = self._rate, view.loss
        if loss is None or loss.actors == 2:
            return None
        if not rate.is_far_below_its_setting:
            return self.end()
        is_squared = _is_square(rate.history.peak, rate.made_with)
        if (is_squared or rate.largest < rate.small_update) and self._is_kept_small(loss):
            return self.hold(None, lambda: self._describe(view.step, loss, is_squared))
        return self.stay()

    def _is_kept_small(self, loss: Loss) -> bool:
        """The rate no longer rises, or not within sight, and nothing is learnt."""
        settled = self._rate.history.peak_since >= self.settled and loss.seen > self.settled
        flat = loss.gain < self.flat_gain and not loss.remaining < self.flat_above
        return (settled or (flat and loss.seen >= self.flat_after)) and not has_learnt(loss)

    def _describe(self, step: int, loss: Loss, is_squared: bool) -> Judgement:
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
        if is_squared:
            summary = (
                f"The schedule turns a learning rate of {made_with:.3g} into {history.peak:.3g} at most: it returns a "
                "rate where a factor belongs."
            )
        return Judgement(Severity.SEVERE, (), self._rate.loss_begun, 0.95 if is_squared else 0.8, summary, evidence)

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        is_square = any(one.quantity == "lr" and _is_square(one.value, one.expected) for one in finding.evidence)
        return cls.remedies if is_square else (RAISE_LEARNING_RATE,)


def _is_square(largest: float | None, made_with: float | None) -> bool:
    """The schedule's own rate times that of the optimizer."""
    return largest is not None and bool(made_with) and abs(largest / made_with**2 - 1) < 0.01
