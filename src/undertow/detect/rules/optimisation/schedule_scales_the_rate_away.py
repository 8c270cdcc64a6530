"""OPT007: the schedule returns a rate where a factor belongs."""

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.learning_rate import LearningRate
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import RAISE_LEARNING_RATE
from undertow.schema import Evidence, Remedy, Severity


class ScheduleScalesTheRateAway(Condition):
    """The schedule multiplies the optimizer's learning rate with a rate, where a factor belongs.

    What it sees: A largest rate that is the square of the one the optimizer was made with, less than a fiftieth of it
        and no longer rising, while nothing is learnt.
    Why it is bad: The two are multiplied: 1e-3 times 1e-3 moves nothing.
    When it is wrong: A rate of 1 is there to be set by the schedule, and is not reported.
    References: PyTorch documentation, `torch.optim.lr_scheduler.LambdaLR`.
    """

    code, variant, formerly = "OPT007", "schedule-scales-the-rate-away", "share"
    stage = Stage.OPTIMIZER
    _rate = Shared(LearningRate)
    meaning = "The learning rate, not the model, decides how this training goes"
    remedies = (
        Remedy(
            "return-a-factor",
            "Let the schedule return a factor of the learning rate, not a rate: the two are multiplied.",
            "def factor(step: int) -> float:\n"
            "    return min(1.0, (step + 1) / 100)  # 1 is the rate of the optimizer\n"
            "schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)",
            "None.",
            when_not="The optimizer was made with a rate of 1 so that the schedule can set it.",
        ),
        RAISE_LEARNING_RATE,
    )

    def observe(self, view: FrameView) -> Judgement | None:
        rate, loss = self._rate, view.loss
        if loss is None or loss.actors == 2:
            return None
        if not rate.is_far_below_its_setting:
            return self.end()
        if "warm-up-never-ends" in rate.open_variants or not rate.is_squared or not rate.is_kept_small(loss):
            return self.stay()
        return self.hold(None, lambda: self._describe(view.step, loss))

    def _describe(self, step: int, loss: Loss) -> Judgement:
        peak, made_with = self._rate.history.peak, self._rate.made_with
        how = f"largest learning rate up to step {step}, and the one that the optimizer was made with"
        evidence = (
            Evidence("lr", None, peak, made_with, how),
            Evidence("loss", None, loss.level, loss.start, "what is left of the first loss"),
        )
        summary = (
            f"The schedule turns a learning rate of {made_with:.3g} into {peak:.3g} at most: it returns a rate where a "
            "factor belongs."
        )
        return Judgement(Severity.SEVERE, (), self._rate.loss_begun, 0.95, summary, evidence)
