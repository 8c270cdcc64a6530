"""OPT001: what was learnt is lost."""

from collections import deque

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.diverging_loss import DivergingLoss
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import CLIP_GRADIENTS, LOWER_LEARNING_RATE, WARM_UP
from undertow.schema import Evidence, Severity


class Forgotten(Condition):
    """The loss had fallen well below its start and is back there.

    What it sees: A loss that had fallen to less than 60 % of its start and has since been back there for twenty-five
        steps, every single one of them, without coming down again.
    Why it is bad: All that was learnt is lost; what comes now begins anew, from worse weights.
    When it is wrong: A loss of which one term is given more and more weight (a prior) rises on purpose: without a
        cross-entropy whose answers become wrong, or large updates, this is only a hint. Harder data are being learnt by
        then.
    References: Zhang et al., "AUTOTRAINER: An Automatic DNN Training Problem Detection and Repair System", 2021.
    """

    code, variant, formerly = "OPT001", "forgotten", "lost"
    stage, is_vague = Stage.COURSE, True
    _course = Shared(DivergingLoss)
    remedies = (LOWER_LEARNING_RATE, WARM_UP, CLIP_GRADIENTS)
    back_to = Limit(0.85, "of the first losses: all of the latest nine losses are above it")
    back_for = Limit(25, "losses in a row: another task, or harder data, is learnt by then")
    recovering = Limit(0.9, "of the level of twelve losses ago: it is being learnt")

    def __init__(self) -> None:
        self._back_for = 0
        self._levels: deque[float] = deque(maxlen=12)

    def observe(self, view: FrameView) -> Judgement | None:
        course, loss = self._course, view.loss
        if loss is None:
            return self.stay()
        if not loss.positive or loss.actors > 1:
            return self.end()
        if loss.seen <= course.first_losses:
            return None
        if not loss.best < course.learnt_to * loss.start or loss.low < self.back_to * loss.start:
            self._back_for = 0
            self._levels.clear()
            return self.end()
        self._back_for += 1
        self._levels.append(loss.level)
        is_recovering = loss.level < self.recovering * self._levels[0] and not self.is_open
        if self._back_for < self.back_for or is_recovering:
            return None
        # A loss of several terms also rises because one of them is given more weight.
        is_sure = course.knows_chance or course.large_step_since_best >= loss.best_step
        return self.hold(is_sure, lambda: self._describe(loss, is_sure))

    def _describe(self, loss: Loss, is_sure: bool) -> Judgement:
        evidence = Evidence("loss", None, loss.level, loss.best, f"now, and at its best at step {loss.best_step}")
        summary = (
            f"What was learnt is lost: the loss had fallen to {loss.best:.3g} by step {loss.best_step} and is back at "
            f"{loss.level:.3g}, where it started."
        )
        severity, confidence = (Severity.SEVERE, 0.9) if is_sure else (Severity.MILD, 0.5)
        return Judgement(severity, (), loss.best_step, confidence, summary, (evidence,))
