"""Numbers to predict that come sorted: batches differ from each other far more than their rows do."""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, pstdev

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

_OF_NUMBERS = (LossKind.MEAN_SQUARE, LossKind.ABSOLUTE)


class SortedNumbers:
    """Means of mixed batches differ by the deviation of the targets over the root of the rows; these by more than it.

    What bootstraps its own targets moves all of them at once, so it is judged by the first batches only: targets that
    follow what was learnt have not gone far by then, and where the very first batches are mixed, so are the data.
    """

    def __init__(self) -> None:
        self._condition = Condition("numbers")
        self._means: deque[float] = deque(maxlen=limit.SORTED_MEMORY)
        self._deviations: deque[float] = deque(maxlen=limit.SORTED_MEMORY)
        self._first_step = 0
        self._mixed = False

    @property
    def is_open(self) -> bool:
        return self._condition.is_open

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        mean, deviation = view.scalar("target_mean"), view.scalar("target_std")
        if self._mixed or math.isnan(mean) or view.scalar("loss_kind") not in _OF_NUMBERS:
            return self._condition.stay()
        several = view.loss is not None and view.loss.actors > 1
        if several or not view.scalar("loss_rows") >= limit.SORTED_ROWS or not deviation > 0:
            return self._condition.stay()
        if not self._means:
            self._first_step = view.step
        self._means.append(mean)
        self._deviations.append(deviation)
        if len(self._means) < limit.SORTED_NUMBERS_LOOKS:
            return self._condition.stay()
        between = pstdev(self._means)
        # Rare large targets (the reward at the end of a game) move some means, and widen those very batches.
        within = math.sqrt(fmean(deviation**2 for deviation in self._deviations))
        self._mixed = len(self._means) == limit.SORTED_NUMBERS_LOOKS and between < limit.SORTED_NUMBERS_MIXED * within
        if between < limit.SORTED_NUMBERS * within:
            return self._condition.end()
        if not self._condition.is_open and view.step - self._first_step > limit.SORTED_NUMBERS_WITHIN:
            return self._condition.stay()
        return self._condition.hold(None, lambda: self._verdict(between, within))

    def _verdict(self, between: float, within: float) -> Verdict:
        how = "deviation of the targets within a batch, and of the means of batches"
        evidence = Evidence("target_std", None, within, between, how)
        summary = (
            f"Batches are not mixed: their means differ {between / within:.1g} times as much as the targets within "
            "one. The data are probably sorted by what is to be predicted; shuffle them."
        )
        return Verdict("numbers", True, Severity.SEVERE, (), self._first_step, 0.85, summary, (evidence,))
