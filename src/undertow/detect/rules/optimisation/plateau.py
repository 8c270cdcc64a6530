"""OPT002: the loss stands still although gradients agree."""

import math
from collections import deque
from statistics import median

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.remedies import OVERFIT_ONE_BATCH
from undertow.schema import Evidence, Remedy, Severity


class Plateau(Condition):
    """The loss fell for a while and has stopped, although successive gradients still agree on a direction.

    What it sees: A loss that made progress, then stood still for the later half of at least two hundred steps at more
        than half of its first value, while successive gradients of the weight matrices keep pointing the same way.
    Why it is bad: Where gradients agree there is something left to learn: the steps are too small for it, or too large
        to settle.
    When it is wrong: A loss at its noise floor does not move either, but there gradients of different batches no longer
        agree. How low the loss of a task can go is not known, so this is a hint, never an alarm.
    References: Goodfellow, Bengio, Courville, "Deep Learning", 2016, section 8.2.
    """

    code, variant = "OPT002", "plateau"
    stage, is_vague = Stage.OUTCOME, True
    is_of_one_training = True
    needs = frozenset({"loss"})
    remedies = (
        Remedy(
            "lower-the-rate-on-a-plateau",
            "Lower the learning rate when the loss stops falling; if it is already small, the model may be done.",
            "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\nscheduler.step(loss)  # once per epoch",
            "Done too early it only slows the training down.",
            when_not="The loss never fell: then nothing was learnt yet.",
        ),
        OVERFIT_ONE_BATCH,
    )
    steps = Limit.sample(200, "losses: the slope covers the later half, and fewer than a hundred show no standstill")
    remaining = Limit(0.5, "of the first loss: below it most of the task may be learnt")
    gain = Limit(5.0, "deviations of a single loss: it did fall")
    cosine = Limit(0.3, "of successive gradients; about 0 at a noise floor")
    looks = Limit(8, "cosines, to know their median")

    def __init__(self) -> None:
        self._cosines: deque[float] = deque(maxlen=32)

    def observe(self, view: FrameView) -> Judgement | None:
        loss = view.loss
        if loss is None or loss.seen < self.steps // 2:
            return None
        if loss.step % 4 == 0 and view.row("gradient_cosine") is not None:
            cosine = middle(matrices_of(view.layout).values(view, "gradient_cosine"))
            if math.isfinite(cosine):
                self._cosines.append(cosine)
        if loss.seen < self.steps or loss.actors > 1 or not loss.positive:
            return None
        moving = loss.falling or loss.rising or loss.remaining < self.remaining or loss.gain < self.gain
        if moving or len(self._cosines) < self.looks or median(self._cosines) < self.cosine:
            return self.end()
        return self.hold(None, lambda: self._describe(loss))

    def _describe(self, loss: Loss) -> Judgement:
        evidence = (
            Evidence("loss", None, loss.level, loss.start, f"no slope over the last {loss.span} steps"),
            Evidence("gradient_cosine", None, median(self._cosines), 0.0, "successive gradients agree"),
        )
        since = loss.step - loss.span
        summary = f"The loss has stood still at {loss.level:.3g} since about step {since}."
        return Judgement(Severity.MILD, (), since, 0.5, summary, evidence)
