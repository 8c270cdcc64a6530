"""OPT002."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class Plateau:
    """The loss fell for a while and has stopped, although the gradients still agree on a direction.

    What it sees
    ------------
    A loss that made progress, then stood still for the later half of at least two hundred steps at more than half of
    its first value, while successive gradients of the weight matrices keep pointing the same way.

    Why it is bad
    -------------
    Where gradients agree there is something left to learn: the steps are too small for it, or too large to settle.

    When it is wrong
    ----------------
    A loss at its noise floor stands still as well; there gradients of different batches no longer agree, which is what
    this rule asks. It cannot know how low the loss of a task can go: this is a hint, never an alarm.

    References
    ----------
    Goodfellow, Bengio, Courville, "Deep Learning", 2016, section 8.2.
    """

    code: ClassVar[str] = "OPT002"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._condition = Condition("plateau")
        self._cosines: deque[float] = deque(maxlen=32)

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def attend(self, batch: FrameBatch) -> Iterator[Said]:
        """At most steps the loss moves, and nothing is remembered."""
        for place, loss in enumerate(batch.losses):
            if loss is not None and (
                self._condition.is_open
                or not (loss.falling or loss.rising or loss.remaining < thresholds.PLATEAU_REMAINING)
                or loss.step % 4 == 0
            ):
                yield place, self.observe(batch.view(place))

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.loss
        if loss is None or loss.seen < thresholds.PLATEAU_STEPS // 2:
            return ()
        if view.row("gradient_cosine") is not None and loss.step % 4 == 0:
            cosine = middle(matrices_of(view.layout).values(view, "gradient_cosine"))
            if math.isfinite(cosine):
                self._cosines.append(cosine)
        if loss.seen < thresholds.PLATEAU_STEPS or loss.actors > 1 or not loss.positive:
            return ()
        moving = loss.falling or loss.rising or loss.remaining < thresholds.PLATEAU_REMAINING
        if moving or loss.gain < thresholds.PLATEAU_GAIN:
            return self._condition.end()
        if len(self._cosines) < 8 or median(self._cosines) < thresholds.PLATEAU_COSINE:
            return self._condition.end()
        return self._condition.hold(None, lambda: self._verdict(loss))

    def _verdict(self, loss: Loss) -> Verdict:
        cosine = median(self._cosines)
        evidence = (
            Evidence("loss", None, loss.level, loss.start, f"no slope over the last {loss.span} steps"),
            Evidence(
                "gradient_cosine", None, cosine, 0.0, "successive gradients agree: there is a direction to follow"
            ),
        )
        summary = f"The loss stands still at {loss.level:.3g} since about step {loss.step - loss.span}."
        return Verdict("plateau", True, Severity.MILD, (), loss.step - loss.span, 0.5, summary, evidence)
