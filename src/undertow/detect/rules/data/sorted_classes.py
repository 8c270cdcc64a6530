"""DAT005: batches of a few classes each."""

import math

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.remedies import SHUFFLE_THE_DATA
from undertow.schema import Evidence, Severity


class SortedClasses(Condition):
    """Batches hold few classes each, although the data hold many: they come sorted.

    What it sees: The entropy of the labels within each batch, on average over at least four measured batches, against
        that of all labels together, or of as many labels as a batch can hold. It is reported below three tenths.
    Why it is bad: Every batch teaches one class and forgets the others; the loss of the next batch shows it only when
        the class changes. Training follows the order of the file instead of the data.
    When it is wrong: Learning one task after another on purpose looks the same. Small batches of many classes hold few
        of them by chance: the bound takes the size of the batch into account, and batches below eight rows are not
        judged.
    References: Bottou, "Curiously Fast Convergence of Some Stochastic Gradient Descent Algorithms", 2009.
    """

    code, variant, formerly = "DAT005", "sorted-classes", "sorted"
    places = ("loader", "batch")
    stage, is_standing = Stage.DATA, True
    wakes_on = having("label_entropy")
    meaning = "Every batch teaches one class, and the next batch teaches another in its place"
    remedies = (SHUFFLE_THE_DATA,)

    share = Limit(0.3, "of the entropy a batch can have; mixed batches: 0.75 and more, 0.4 for pixels of few pictures")
    share_to_end = Limit(0.36, "of it: above, batches are mixed again")
    batches = Limit.sample(4, "measured batches: single ones may hold one class by chance")
    memory = Limit.memory(50, "measured batches in the running mean")
    rows = Limit(8, "labels of a batch: fewer hold few classes by chance")
    least_entropy = Limit(0.6, "nats that a batch could have: nearly two classes in equal parts")

    def __init__(self) -> None:
        self._mean, self._count = 0.0, 0.0
        self._first_step = 0

    def observe(self, view: FrameView) -> Judgement | None:
        entropy, pooled, rows = (view.scalar(n) for n in ("label_entropy", "label_entropy_pooled", "loss_rows"))
        if math.isnan(entropy):
            return self.stay()
        if view.loss is not None and (view.loss.actors > 1 or not view.loss.positive):
            return self.end()  # adversaries show each other one class at a time; rewards weigh what an agent did
        if not rows >= self.rows:
            return self.stay()
        if self._count == 0:
            self._first_step = view.step
        self._count = min(self._count + 1, self.memory)
        self._mean += (entropy - self._mean) / self._count
        possible = min(pooled, math.log(rows))
        if self._count < self.batches or not possible > self.least_entropy:  # one class so far is no mixture
            return self.stay()
        if self._mean > self.share * possible:
            return self.end() if self._mean > self.share_to_end * possible else None
        return self.hold(None, lambda: self._describe(possible))

    def _describe(self, possible: float) -> Judgement:
        how = "mean within a batch, and of all labels together"
        summary = (
            f"Batches are not shuffled: each holds about {math.exp(self._mean):.1f} classes "
            f"({math.exp(possible):.0f} if mixed). The data are probably sorted by class."
        )
        evidence = (Evidence("label_entropy", None, self._mean, possible, how),)
        return Judgement(Severity.SEVERE, (), self._first_step, 0.92, summary, evidence)
