"""DAT005."""

from __future__ import annotations

import math
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.repeated_batch import RepeatedBatch
from undertow.detect.rule import Verdict, Waiting
from undertow.detect.sorted_numbers import SortedNumbers
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class UnmixedBatches(Waiting):
    """Batches hold few classes each, although the data hold many: they come sorted. Or all batches are the same one.

    What it sees
    ------------
    The entropy of the labels within each batch, on average over at least four measured batches, against that of all
    labels together, or of as many labels as a batch can hold. It is reported below three tenths. Of numbers to predict,
    batches in the first steps whose means differ more than the numbers within a batch do. And one batch that comes
    again at every look, inputs and targets bit for bit, in new tensors: an iterator that is made anew in every step, or
    a sampler that is seeded anew.

    Why it is bad
    -------------
    Every batch teaches one class and forgets the others; the loss of the next batch shows it only when the class
    changes. Training follows the order of the file instead of the data.

    When it is wrong
    ----------------
    Learning one task after another on purpose looks the same. Small batches of many classes hold few of them by chance:
    the bound takes the size of the batch into account, and batches below eight rows are not judged. All data as one
    batch is a choice, and so is a batch that is kept in one tensor; neither is reported.

    References
    ----------
    Bottou, "Curiously Fast Convergence of Some Stochastic Gradient Descent Algorithms", 2009.
    """

    code: ClassVar[str] = "DAT005"
    waits_for: ClassVar[frozenset[str]] = frozenset({"label_entropy", "target_mean", "targets_repeated", "input_mean"})

    def __init__(self) -> None:
        self._condition = Condition("sorted")
        self._repeated, self._numbers = RepeatedBatch(), SortedNumbers()
        self._mean, self._count = 0.0, 0.0
        self._first_step = 0

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return not (self._condition.is_open or self._numbers.is_open or self._repeated.is_open)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        return (*self._observe_order(view), *self._numbers.observe(view), *self._repeated.observe(view))

    def _observe_order(self, view: FrameView) -> tuple[Verdict, ...]:
        scalars = view.frame.scalars
        entropy = scalars.get("label_entropy")
        if entropy is None or entropy != entropy:  # NaN: not known
            return self._condition.stay()
        if view.loss is not None and view.loss.actors > 1:
            return self._condition.end()  # adversaries show each other one class at a time
        pooled, rows = scalars.get("label_entropy_pooled", math.nan), scalars.get("loss_rows", math.nan)
        if not rows >= thresholds.SORTED_ROWS:
            return self._condition.stay()
        if self._count == 0:
            self._first_step = view.step
        self._count = min(self._count + 1, thresholds.SORTED_MEMORY)
        self._mean += (entropy - self._mean) / self._count
        possible = min(pooled, math.log(rows))
        # One class so far is no mixture to compare with.
        if self._count < thresholds.SORTED_FRAMES or not possible > thresholds.SORTED_LEAST:
            return self._condition.stay()
        if self._mean > thresholds.SORTED_SHARE * possible:
            return self._condition.end() if self._mean > 1.2 * thresholds.SORTED_SHARE * possible else ()
        return self._condition.hold(None, lambda: self._verdict(possible))

    def _verdict(self, possible: float) -> Verdict:
        evidence = Evidence(
            "label_entropy", None, self._mean, possible, "mean within a batch, and of all labels together"
        )
        summary = (
            f"Batches are not mixed: one holds about {math.exp(self._mean):.1f} classes where {math.exp(possible):.0f} "
            "are to be expected. The data are probably sorted; shuffle them."
        )
        return Verdict("sorted", True, Severity.SEVERE, (), self._first_step, 0.92, summary, (evidence,))
