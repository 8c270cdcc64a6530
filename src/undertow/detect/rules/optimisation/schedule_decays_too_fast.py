"""OPT007: the schedule takes the learning rate away before anything is learnt."""

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.learning_rate import LearningRate
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.rate_history import FALLEN_TO
from undertow.detect.features.remedies import RAISE_LEARNING_RATE
from undertow.schema import Evidence, Remedy, Severity

_LITTLE, _NEXT_TO_NOTHING = max(FALLEN_TO), min(FALLEN_TO)


class ScheduleDecaysTooFast(Condition):
    """The learning rate has fallen to next to nothing within few steps, while there is much left to learn.

    What it sees: A rate below a hundredth or a thousandth of its peak for a good part of all steps, with next to
        nothing learnt; or with a third of the loss left, where it was falling when the rate went, or the rate shrank by
        the same share at every step, or to less than any plan would.
    Why it is bad: From then on the model stays as it is. Typical causes are a schedule meant for epochs and stepped
        with every batch, and one that waits for a metric to rise that should fall.
    When it is wrong: A rate of nearly zero at the end of a schedule is healthy: a cosine is there for a fiftieth of its
        length. A rate that was lowered because of a plateau is not reported.
    References: PyTorch documentation, "How to adjust learning rate".
    """

    code, variant, formerly = "OPT007", "schedule-decays-too-fast", "schedule"
    places = ("schedule", "rate change")
    stage = Stage.OPTIMIZER
    _rate = Shared(LearningRate)
    meaning = "The learning rate, not the model, decides how this training goes"
    remedies = (
        Remedy(
            "step-the-schedule-per-epoch",
            "Step the schedule as often as its settings mean: once per epoch, not once per batch.",
            "for epoch in range(epochs):\n"
            "    for batch in loader:\n"
            "        train_step(batch)\n"
            "    scheduler.step()  # here, not in the inner loop",
            "None.",
            when_not="Its settings count steps, as those of a warm-up or a cosine over all steps do.",
        ),
        RAISE_LEARNING_RATE,
    )
    unlearnt = Limit(0.9, "of the first losses that is still there: next to nothing was learnt")
    unlearnt_gain = Limit(8.0, "deviations of a single loss")
    cut_off = Limit(0.3, "of the first losses: so much is left, and it was being learnt")
    absurd = Limit(1e-8, "of its peak, and not zero: no plan goes there, whatever the loss was doing")
    evenly = Limit.arithmetic(20, "steps in a row at which the rate shrank by one factor: cosines and lines do not")

    def observe(self, view: FrameView) -> Judgement | None:
        loss, history = view.loss, self._rate.history
        if loss is None or loss.actors == 2:
            return None
        fallen = self._fallen_for(loss) if history.fallen_for(_LITTLE) else 0
        if fallen:
            return self.hold(None, lambda: self._describe(view.step, loss, fallen))
        if self.is_open and history.now < _NEXT_TO_NOTHING * history.peak:
            return self.stay()
        return self.end()

    def _fallen_for(self, loss: Loss) -> int:
        """Steps without a rate worth the name, if nothing explains it."""
        history, fallen = self._rate.history, 0
        for share, (fewest, part) in FALLEN_TO.items():
            below = history.fallen_for(share)
            if below < max(fewest, part * (history.steps - below)):
                continue
            is_unlearnt = not loss.remaining < self.unlearnt and loss.gain < self.unlearnt_gain
            was_learning = self._rate.fell_while_falling or history.shrinks_for >= self.evenly
            was_learning |= 0 < history.now < self.absurd * history.peak
            is_cut_off = was_learning and loss.remaining > self.cut_off
            if is_unlearnt or (is_cut_off and share == _NEXT_TO_NOTHING):
                fallen = below
        return fallen

    def _describe(self, step: int, loss: Loss, below: int) -> Judgement:
        history = self._rate.history
        evidence = (
            Evidence("lr", None, history.now, history.peak, f"below its peak for {below} steps; it fell to this"),
            Evidence("loss", None, loss.level, loss.start, "what is left of the first loss"),
        )
        summary = (
            f"The schedule let the learning rate fall from {history.peak:.3g} to {history.now:.3g} within "
            f"{history.steps} steps, before the model has learnt. Is it stepped per batch with settings for epochs?"
        )
        return Judgement(Severity.SEVERE, (), max(step - below, 0), 0.93, summary, evidence)
