"""OPT007: the learning rate is too low."""

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.learning_rate import LearningRate
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import RAISE_LEARNING_RATE
from undertow.schema import Evidence, Severity


class LearningRateTooLow(Condition):
    """No update has ever changed a weight noticeably, and the loss stands still.

    What it sees: Updates of less than a fifty-thousandth of the weights from the first step on, or, after a hundred
        steps, less than a five-thousandth, while the loss stands still.
    Why it is bad: The model stays as it was initialised.
    When it is wrong: A warm-up begins with such a rate: one that rises is not judged here. Where clipping takes most of
        the gradient, that is the cause (GRD010), and where a schedule took the rate away, the schedule is.
    References: Bengio, "Practical Recommendations for Gradient-Based Training of Deep Architectures", 2012 (arXiv
        1206.5533).
        Karpathy, CS231n notes, "Ratio of weights:updates".
    """

    code, variant, formerly = "OPT007", "learning-rate-too-low", "low"
    stage = Stage.BLOCKED
    _rate = Shared(LearningRate)
    meaning = "The learning rate, not the model, decides how this training goes"
    remedies = (RAISE_LEARNING_RATE,)
    tiny = Limit(2e-5, "of the weight, at most, of all matrices; 1 % of healthy ones are below 7e-5")
    looks = Limit(2, "measured updates: the first one may be of a single odd batch")
    judged_after = Limit(10, "losses: the median of nine is then of nine steps")
    small_after = Limit(100, "losses: steps of 2e-4 come to a fiftieth of the weights by then")
    noise = Limit(0.03, "deviation of a loss over the first: more, and it cannot be seen to stand still")
    clipped_to = Limit(0.1, "of the gradient: what clipping leaves less of is GRD010")

    def observe(self, view: FrameView) -> Judgement | None:
        rate, history, loss = self._rate, self._rate.history, view.loss
        if loss is None or loss.actors == 2:
            return None
        is_small = rate.largest < rate.small_update and loss.seen >= self.small_after
        is_small = is_small and loss.noise < self.noise * abs(loss.start)
        if not (rate.largest < self.tiny or is_small) or not rate.largest or history.risen:
            return self.end()
        is_known = rate.measured >= self.looks and loss.seen >= self.judged_after and loss.actors == 1
        is_still = loss.gain < rate.flat_gain and not loss.remaining < rate.flat_above
        is_explained = rate.clipped < self.clipped_to or "schedule-decays-too-fast" in rate.open_variants
        if not is_known or not is_still or is_explained or history.now < history.first / 2:
            return self.stay()
        return self.hold(None, lambda: self._describe(view, loss))

    def _describe(self, view: FrameView, loss: Loss) -> Judgement:
        largest, now = self._rate.largest, self._rate.history.now
        evidence = (
            Evidence("update_ratio", None, largest, 1e-3, "largest update over weight of any matrix so far"),
            Evidence("lr", None, now, None, f"learning rate at step {view.step}"),
            Evidence("loss", None, loss.level, loss.start, f"loss now and at the start, {loss.seen} steps apart"),
        )
        summary = (
            f"The learning rate of {now:.3g} is too low: updates are at most {largest:.1g} of the weights (1e-3 is "
            "usual), and the loss stands still."
        )
        severity, confidence = (Severity.SEVERE, 0.9) if largest < self.tiny else (Severity.MODERATE, 0.7)
        return Judgement(severity, (), max(self._rate.begun, 0), confidence, summary, evidence)
