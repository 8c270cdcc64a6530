"""DAT005: regression targets that come sorted."""

import math
from collections import deque
from itertools import pairwise
from statistics import fmean, pstdev

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.remedies import SHUFFLE_THE_DATA
from undertow.schema import Evidence, LossKind, Severity

_MEMORY = 50  # batches
_OF_NUMBERS = (LossKind.MEAN_SQUARE, LossKind.ABSOLUTE)


class SortedTargets(Condition):
    """Regression targets come sorted: batches differ from each other far more than their rows do.

    What it sees: The mean and the deviation of the targets of each batch in the first steps. Means of mixed batches
        differ by the deviation of the targets over the root of the rows; these differ by one and a half times that
        deviation, and each is near the one before it.
    Why it is bad: Every batch teaches another range of targets, and training follows the order of the file instead of
        the data.
    When it is wrong: What bootstraps its own targets moves all of them at once, so only the first batches are judged:
        targets that follow what was learnt have not gone far by then. Batches that differ without an order, as the
        episodes of a game do, are not sorted. A curriculum from small to large targets looks
        the same.
    References: Bottou, "Curiously Fast Convergence of Some Stochastic Gradient Descent Algorithms", 2009.
    """

    code, variant, formerly = "DAT005", "sorted-targets", "numbers"
    places = ("loader", "batch")
    stage, is_standing = Stage.DATA, True
    wakes_on = having("target_mean")
    meaning = "Every batch teaches one range of targets, and the next batch teaches another in its place"
    remedies = (SHUFFLE_THE_DATA,)

    ratio = Limit(1.5, "deviation of the means of batches over that within them; 0.35 at most for mixed batches")
    order = Limit(0.5, "mean square of the steps between means over their variance; 2 without any order")
    mixed = Limit(0.5, "of that ratio: the first batches are mixed, so the data are")
    batches = Limit.sample(8, "measured batches, of which the means have a deviation worth the name")
    within = Limit.start(40, "steps from the first batch: later, targets may follow what was learnt")
    rows = Limit(8, "targets of a batch: of fewer the deviation is not known")

    def __init__(self) -> None:
        self._means: deque[float] = deque(maxlen=_MEMORY)
        self._deviations: deque[float] = deque(maxlen=_MEMORY)
        self._first_step = 0
        self._mixed = False

    def observe(self, view: FrameView) -> Judgement | None:
        mean, deviation = view.scalar("target_mean"), view.scalar("target_std")
        if self._mixed or math.isnan(mean) or view.scalar("loss_kind") not in _OF_NUMBERS:
            return self.stay()
        several = view.loss is not None and view.loss.actors > 1
        if several or not view.scalar("loss_rows") >= self.rows or not deviation > 0:
            return self.stay()
        if not self._means:
            self._first_step = view.step
        self._means.append(mean)
        self._deviations.append(deviation)
        if len(self._means) < self.batches:
            return self.stay()
        between = pstdev(self._means)
        # Rare large targets (the reward at the end of a game) move some means, and widen those very batches.
        within = math.sqrt(fmean(deviation**2 for deviation in self._deviations))
        self._mixed = len(self._means) == self.batches and between < self.mixed * within
        if between < self.ratio * within or not self._in_order(between):
            return self.end()
        if not self.is_open and view.step - self._first_step > self.within:
            return self.stay()
        return self.hold(None, lambda: self._describe(between, within))

    def _in_order(self, between: float) -> bool:
        means = list(self._means)
        return fmean((after - before) ** 2 for before, after in pairwise(means)) < self.order * between**2

    def _describe(self, between: float, within: float) -> Judgement:
        how = "standard deviation of the targets within a batch, and of the batch means"
        summary = (
            f"Batches are not shuffled: their means vary {between / within:.1g}× as much as the targets within one "
            "(0.35× at most if mixed). The data are probably sorted by target."
        )
        evidence = (Evidence("target_std", None, within, between, how),)
        return Judgement(Severity.SEVERE, (), self._first_step, 0.85, summary, evidence)
