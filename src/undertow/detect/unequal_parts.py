"""Micro-batches of unequal size that count alike."""

from __future__ import annotations

import math

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import Consecutive
from undertow.detect.engine.view import FrameView
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class UnequalParts:
    """The mean of their means is not the mean over all rows. The last batch of an epoch is small once in a while."""

    def __init__(self) -> None:
        self._condition = Condition("unequal")
        self._looks = Consecutive()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        spread = view.scalar("micro_batch_spread")
        if math.isnan(spread):
            return self._condition.stay()
        if spread < limit.UNEQUAL_PARTS or (view.loss is not None and view.loss.actors > 1):
            self._looks.end()
            return self._condition.end()
        if self._looks.hold(view.step) < limit.UNEQUAL_LOOKS:
            return ()
        return self._condition.hold(None, lambda: self._verdict(spread))

    def _verdict(self, spread: float) -> Verdict:
        how = "how many times as much a row of one micro-batch counts as a row of another in the same step"
        evidence = Evidence("micro_batch_spread", None, spread, 1.0, how)
        summary = (
            "Micro-batches of unequal size count alike: in a small one a row, or a token, weighs up to "
            f"{spread:.3g} times as much as in a large one. Divide the sum of the losses by the rows of the whole step."
        )
        return Verdict("unequal", True, Severity.MODERATE, (), self._looks.since, 0.85, summary, (evidence,))
