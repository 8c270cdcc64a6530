"""LSS004: micro-batches of unequal size count alike."""

import math

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, having
from undertow.schema import Evidence, Remedy, Severity


class UnequalMicroBatches(Condition):
    """The mean of the means of unequal micro-batches is not the mean over all rows.

    What it sees: In the first steps, three or more micro-batches of one kind in which a row (a token) counts twice as
        much as in another, at four steps in a row.
    Why it is bad: A token of a short text weighs more than one of a long text: the gradient is not that of the whole
        batch.
    When it is wrong: Texts that are meant to weigh alike whatever their length are reported. The last batch of an epoch
        is small once in a while and is not.
    References: Hugging Face, "Fixing Gradient Accumulation", 2024.
    """

    code, variant, formerly = "LSS004", "unequal-micro-batches", "unequal"
    places = ("backward",)
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    wakes_on = having("micro_batch_spread")
    meaning = "The gradient is not the mean over all rows of the step"
    remedies = (
        Remedy(
            "divide-by-all-rows",
            "Sum the losses of all rows of a step, and divide once by their number.",
            "cross_entropy = torch.nn.functional.cross_entropy\n"
            "rows = sum(len(targets) for _, targets in parts)  # without padding\n"
            "for inputs, targets in parts:\n"
            "    loss = cross_entropy(model(inputs), targets, reduction='sum')\n"
            "    (loss / rows).backward()",
            "The rows of a step must be counted before its first backward pass.",
            when_not="Small micro-batches are meant to weigh as much as large ones.",
        ),
    )
    spread = Limit(2.0, "times as much as a row of another micro-batch")
    patience = Limit.chance(4, "measured steps in a row: the last batch of an epoch is small, too")

    def __init__(self) -> None:
        self._streak = Consecutive()

    def observe(self, view: FrameView) -> Judgement | None:
        spread = view.scalar("micro_batch_spread")
        if math.isnan(spread):
            return self.stay()
        if spread < self.spread or (view.loss is not None and view.loss.actors > 1):
            self._streak.end()
            return self.end()
        if self._streak.hold(view.step) < self.patience:
            return None
        return self.hold(None, lambda: self._describe(spread))

    def _describe(self, spread: float) -> Judgement:
        how = "largest weight of a row over the smallest, within one step"
        evidence = Evidence("micro_batch_spread", None, spread, 1.0, how)
        summary = (
            f"Micro-batches of unequal size have equal weight: a row of the smallest counts up to {spread:.3g} times "
            "as much as one of the largest."
        )
        return Judgement(Severity.MODERATE, (), self._streak.since, 0.85, summary, (evidence,))
