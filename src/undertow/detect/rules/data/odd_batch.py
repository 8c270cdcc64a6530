"""DAT002: a batch that is measured to be unlike the others."""

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.batch_statistics import LEAP, BatchStatistics
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import GUARD_AGAINST_SPIKES, INSPECT_THE_BATCH
from undertow.schema import Evidence, Severity


class OddBatch(Condition):
    """One batch, or a few, is not like the others, and the loss leaps with it.

    What it sees: A loss more than eight robust deviations above the latest ones and at least e times as large, together
        with what the batch itself was: inputs or targets five times further off than in any batch before, or labels
        that are suddenly all alike.
    Why it is bad: A single step on a broken batch can undo hundreds of good ones: gradients are as large as the batch
        is wrong.
    When it is wrong: Harder data change the loss, and neither the size of the inputs by such a factor nor for a few
        steps only. Other data for good (a new phase) look like a bad batch at first.
    References: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (arXiv 2204.02311), section 5.1.
    """

    code, variant, formerly = "DAT002", "odd-batch", "batch"
    stage, is_momentary = Stage.OPTIMIZER, True
    _batches = Shared(BatchStatistics)
    meaning = "One bad batch can undo many good steps"
    remedies = (INSPECT_THE_BATCH, GUARD_AGAINST_SPIKES)

    leap = LEAP
    ratio = Limit(2.718, "times the loss before")
    over_after = Limit(20, "steps since the last odd batch: what it did has healed or not by then")

    def observe(self, view: FrameView) -> Judgement | None:
        loss, proof = view.loss, self._batches.proof
        if proof is None or loss is None:
            is_over = self.is_open and view.step - self._batches.odd_step > self.over_after
            return self.end() if is_over else self.stay()
        leaps = loss.jump > self.leap and not loss.ratio < self.ratio
        return self.hold(None, lambda: _describe(view.step, loss, proof)) if leaps or self.is_open else None


def _describe(step: int, loss: Loss, proof: Evidence) -> Judgement:
    how = f"loss of the batch at step {step}, and at its best before"
    leap = Evidence("loss", None, loss.value, loss.best, how)
    summary = (
        f"The batch at step {step} is not like the others ({proof.quantity.replace('_', ' ')} {proof.value:.3g} "
        f"instead of {proof.expected:.3g}), and the loss leapt to {loss.value:.3g}."
    )
    return Judgement(Severity.SEVERE, (), step, 0.9, summary, (proof, leap))
