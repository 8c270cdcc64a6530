"""GRD005: gradients point back and forth."""

import math
from collections import deque

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.remedies import LOWER_LEARNING_RATE, SHUFFLE_THE_DATA, USUAL_MOMENTUM
from undertow.schema import Evidence, Severity


class OscillatingGradient(Condition):
    """Gradients point back and forth, step after step, and the loss does not fall.

    What it sees: The cosine of each gradient with that of the step before, for the median weight matrix. Reported when
        sixteen of twenty successive pairs point clearly against each other (below -0.3) while the loss has made no
        progress, or has lost again half of what it had gained.
    Why it is bad: Every step jumps across the valley and the next one jumps back. The learning rate is too high for the
        curvature, or momentum is, and no amount of further steps helps.
    When it is wrong: Full-batch training at the edge of stability oscillates in healthy runs: there the loss falls in
        the long run, and it is not reported. Only pairs of neighbouring steps count; where gradients are measured more
        rarely, it is not reported.
    References: Cohen et al., "Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability", 2021
        (arXiv 2103.00065).
    """

    code, variant, formerly = "GRD005", "oscillating-gradient", "direction"
    places = ("rate",)
    stage, is_vague = Stage.COURSE, True
    remedies = (LOWER_LEARNING_RATE, USUAL_MOMENTUM, SHUFFLE_THE_DATA)
    needs = frozenset({"gradient"})
    is_of_one_training = True

    cosine = Limit(-0.3, "of successive gradients, in the middle of all matrices; 90 % of healthy runs are above 0.17")
    window = Limit(20, "pairs of neighbouring steps: the direction of a few is chance, whatever the length of the run")
    opposed = Limit(16, "pairs of these: pairs without relation are as often opposed at most once in 170 windows")
    gain = Limit(0.05, "of the starting loss: at the edge of stability more is gained by then")

    def __init__(self) -> None:
        self._cosines: deque[tuple[int, float]] = deque(maxlen=int(self.window))
        self._last_step = -2

    def observe(self, view: FrameView) -> Judgement | None:
        if view.skipped or view.ids("gradient") is None:
            return None
        before, self._last_step = self._last_step, view.step
        matrices = matrices_of(view.layout)
        if view.step != before + 1 or not len(matrices):
            return self.stay()
        cosine = matrices.middle(view, "gradient_cosine")
        if math.isnan(cosine):
            return self.stay()
        self._cosines.append((view.step, cosine))
        if cosine >= self.cosine and not self.is_open:
            return None
        against = [pair for pair in self._cosines if pair[1] < self.cosine]
        if len(against) < self.opposed or not self._is_stuck(view.loss):
            return self.end()
        return self.hold(True, lambda: self._describe(view, against))

    def _is_stuck(self, loss: Loss | None) -> bool:
        if loss is None or loss.falling:
            return False
        gained = loss.start - loss.best
        return gained < self.gain * abs(loss.start) or loss.level - loss.best > 0.5 * gained

    def _describe(self, view: FrameView, against: list[tuple[int, float]]) -> Judgement:
        usual = sorted(cosine for _, cosine in against)[len(against) // 2]
        how = "with the gradient of the previous step, median of all matrices and of the latest steps"
        evidence = [Evidence("gradient_cosine", None, usual, None, how)]
        if view.loss is not None:
            evidence.append(Evidence("loss", None, view.loss.level, view.loss.best, "loss now, and at its best"))
        summary = "Gradients point against the previous ones and the loss does not fall: updates jump back and forth."
        # The learning rate is at fault, no layer of it.
        return Judgement(Severity.MODERATE, (), against[0][0], 0.75, summary, tuple(evidence))
