"""OPT007: one parameter group has a learning rate far above the others."""

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.learning_rate import LearningRate
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import LOWER_LEARNING_RATE, WARM_UP
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class GroupRateTooHigh(Condition):
    """One parameter group has thirty times the learning rate of the others, and nothing is learnt.

    What it sees: A group whose rate is thirty times that of the median matrix, and a loss that stands still where it
        began.
    Why it is bad: What the group holds (a learnt scale, a temperature, a head) is thrown far away in the first steps,
        and the rest of the model cannot learn through it.
    When it is wrong: Adapters are trained with up to 16 times the rate on purpose. A group that is far ahead while the
        loss falls is not reported.
    References: PyTorch documentation, "Per-parameter options" of `torch.optim`.
    """

    code, variant = "OPT007", "group-rate-too-high"
    stage = Stage.OPTIMIZER
    _rate = Shared(LearningRate)
    meaning = "The learning rate, not the model, decides how this training goes"
    remedies = (LOWER_LEARNING_RATE, WARM_UP)
    judged_after = Limit(60, "losses: healthy trainings have left their first loss by then")
    level = Limit(0.93, "of the first losses, for the latest")
    best = Limit(0.85, "of the first losses, for the lowest: what was learnt and lost is another fault")
    noise = Limit(0.02, "of the first losses: more, and a change of a few per cent is not seen")

    def observe(self, view: FrameView) -> Judgement | None:
        rate, loss = self._rate, view.loss
        if not rate.open_variants.isdisjoint({"learning-rate-jump", "learning-rate-too-high"}):
            return self.stay()
        if loss is None or not loss.positive or loss.actors > 1 or rate.has_implausible_start:
            return self.stay()
        if self._stands_still(loss) and "schedule-decays-too-fast" not in rate.open_variants:
            return self.hold(None, lambda: self._describe(view, loss))
        if loss.high < rate.above_first * loss.first and loss.falling:
            return self.end()
        return self.stay()

    def _stands_still(self, loss: Loss) -> bool:
        if not self._rate.fast.parameters or loss.seen < self.judged_after or loss.falling:
            return False
        flat = loss.level > self.level * loss.start and loss.best > self.best * loss.start
        return flat and loss.noise < self.noise * loss.start

    def _describe(self, view: FrameView, loss: Loss) -> Judgement:
        fast = self._rate.fast
        layers = fast.parameters
        how = f"learning rate of its group; that of the others is less than 1/{fast.ahead:.0f} of it"
        evidence = (
            Evidence("optimizer_rate", view.layout.path(layers[0]), self._rate.history.peak, None, how),
            Evidence("loss", None, loss.level, loss.start, f"loss now and at the start, {loss.seen} steps apart"),
        )
        summary = (
            f"The learning rate of {name_layers(view.layout, layers)} is more than {fast.ahead:.0f}× that of the other "
            "parameters, and the loss stands still."
        )
        return Judgement(Severity.SEVERE, layers, max(self._rate.begun, 0), 0.75, summary, evidence)
