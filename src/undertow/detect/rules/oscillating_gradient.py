"""GRD005."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
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


class OscillatingGradient:
    """Gradients point back and forth, step after step, and the loss does not fall.

    What it sees
    ------------
    The cosine of each gradient with that of the step before, in the middle of all weight matrices. It speaks when
    sixteen of twenty successive pairs point clearly against each other (below -0.3) while the loss has made no
    progress, or has lost again half of what it had gained.

    Why it is bad
    -------------
    Every step jumps across the valley and the next one jumps back. The learning rate is too high for the curvature,
    or momentum is, and no amount of further steps helps.

    When it is wrong
    ----------------
    Full-batch training at the edge of stability oscillates in health: there the loss falls in the long run, and nothing
    is said. Only pairs of neighbouring steps count; where gradients are measured more rarely, this rule is silent.

    References
    ----------
    Cohen et al., "Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability", 2021
    (arXiv 2103.00065).
    """

    code: ClassVar[str] = "GRD005"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._condition = Condition("direction")
        self._cosines: deque[tuple[int, float]] = deque(maxlen=thresholds.OSCILLATION_WINDOW)
        self._last_step = -2

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def attend(self, batch: FrameBatch) -> Iterator[Said]:
        places, matrices = batch.frames_with("gradient"), matrices_of(batch.layout)
        if not places:
            return
        if not len(matrices):
            yield from ((place, self.observe(batch.view(place))) for place in places)
            return
        cosines: list[float] = matrices.middles(batch, "gradient_cosine").tolist()
        for place, cosine in zip(places, cosines):
            step, opposed = batch.frames[place].step, cosine < thresholds.OSCILLATION_COSINE
            usual = step == self._last_step + 1 and cosine == cosine and not batch.skipped[place]
            few = not opposed or len(self._against()) < thresholds.OSCILLATION_PAIRS - 1
            if usual and few and not self._condition.is_open:
                self._last_step = step
                self._cosines.append((step, cosine))
            else:
                yield place, self.observe(batch.view(place))

    def _against(self) -> list[tuple[int, float]]:
        return [(step, value) for step, value in self._cosines if value < thresholds.OSCILLATION_COSINE]

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.skipped or view.ids("gradient") is None:
            return ()
        before, self._last_step = self._last_step, view.step
        matrices = matrices_of(view.layout)
        if view.step != before + 1 or not len(matrices):
            return self._condition.stay()
        cosine = middle(matrices.values(view, "gradient_cosine"))
        if math.isnan(cosine):
            return self._condition.stay()
        self._cosines.append((view.step, cosine))
        if cosine >= thresholds.OSCILLATION_COSINE and not self._condition.is_open:
            return ()
        against = self._against()
        if len(against) < thresholds.OSCILLATION_PAIRS or not _is_stuck(view.loss):
            return self._condition.end()
        return self._condition.hold(True, lambda: self._verdict(view, [value for _, value in against], against[0][0]))

    def _verdict(self, view: FrameView, cosines: list[float], since: int) -> Verdict:
        evidence = [
            Evidence("gradient_cosine", None, _middle_of(cosines), None,
                     "with the gradient of the step before, in the middle of all matrices and of the latest steps")
        ]  # fmt: skip
        if view.loss is not None:
            evidence.append(Evidence("loss", None, view.loss.level, view.loss.best, "the loss, beside its best level"))
        summary = "Every gradient points against the one before it and the loss does not fall: steps jump to and fro."
        return Verdict(
            self._condition.key, True, Severity.MODERATE, (), since, 0.75, summary, tuple(evidence)
        )  # the learning rate is at fault, no layer of it


def _is_stuck(loss: Loss | None) -> bool:
    if loss is None or loss.falling:
        return False
    gained = loss.start - loss.best
    return gained < thresholds.OSCILLATION_GAIN * abs(loss.start) or loss.level - loss.best > 0.5 * gained


def _middle_of(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
