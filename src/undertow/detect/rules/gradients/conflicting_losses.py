"""GRD009: two losses work against each other."""

import math
from collections import deque

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, where_scalar
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import BALANCE_THE_TERMS, USE_LARGER_BATCHES
from undertow.schema import Evidence, Severity


class ConflictingLosses(Condition):
    """The two losses of every step pull the same layers in opposite directions.

    What it sees: Where the losses of a step have a backward pass each, two of them, their gradients can be told apart.
        Reported when they point against each other, for the median matrix, at nearly every measured step while the loss
        makes no progress. Terms that are added up before one backward pass cannot be told apart.
    Why it is bad: The steps for one loss undo those for the other. This is a remark, never an alarm.
    When it is wrong: Adversarial losses oppose each other by design.
    References: Yu et al., "Gradient Surgery for Multi-Task Learning", 2020 (arXiv 2001.06782).
    """

    code, variant, formerly = "GRD009", "conflicting-losses", "conflict"
    stage = Stage.STEP
    meaning = "One part of the loss is learnt at the cost of the others"
    remedies = (BALANCE_THE_TERMS, USE_LARGER_BATCHES)
    needs = frozenset({"gradient"})
    wakes_on = where_scalar("backward_count", lambda count: count == 2)

    window = Limit.sample(20, "measured steps: unrelated gradients oppose each other at 19 of 20 once in 50,000")
    opposed = Limit(0.95, "of these steps")

    def __init__(self) -> None:
        self._pairs: deque[tuple[int, bool]] = deque(maxlen=int(self.window))  # (step, against each other)

    def observe(self, view: FrameView) -> Judgement | None:
        matrices = matrices_of(view.layout)
        if view.skipped or view.ids("gradient") is None or view.scalar("backward_count") != 2 or not len(matrices):
            return None
        # Of two gradients the noise scale is infinite exactly when their scalar product is not positive.
        scale = matrices.middle(view, "gradient_noise_scale")
        if math.isnan(scale):
            return self.stay()
        self._pairs.append((view.step, math.isinf(scale)))
        if len(self._pairs) < self.window:
            return None
        against = sum(opposed for _, opposed in self._pairs)
        loss = view.loss
        if against < self.opposed * len(self._pairs) or loss is None or loss.actors > 1 or has_learnt(loss):
            return self.end()
        return self.hold(True, lambda: self._describe(against))

    def _describe(self, against: int) -> Judgement:
        how = f"at {against} of the latest {len(self._pairs)} measured steps the two gradients pointed apart"
        evidence = Evidence("gradient_noise_scale", None, math.inf, None, how)
        summary = "The two losses of every step pull the same layers in opposite directions."
        return Judgement(Severity.MILD, (), self._pairs[0][0], 0.6, summary, (evidence,))
