"""DAT002: a leap of the loss that only a batch explains."""

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.batch_statistics import BatchStatistics
from undertow.detect.features.remedies import GUARD_AGAINST_SPIKES, INSPECT_THE_BATCH
from undertow.detect.features.spike import Spike
from undertow.detect.features.wording import count_of
from undertow.schema import Evidence, Severity


class SuspectedBatch(Condition):
    """The loss leaps from one step to the next and comes back, as with a bad batch.

    What it sees: A loss that leaps out of a calm course, is worse than that of the untrained model and is back within
        five steps, or is twenty times as high as that of the untrained model. The batch itself was not measured.
    Why it is bad: A single step on a broken batch can undo hundreds of good ones: gradients are as large as the batch
        is wrong.
    When it is wrong: Without a measurement of the batch, an optimizer near the edge of stability can look the same:
        confidence is low.
    References: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (arXiv 2204.02311), section 5.1.
    """

    code, variant, formerly = "DAT002", "suspected-batch", "suspect"
    stage, is_momentary = Stage.OPTIMIZER, True
    _batches = Shared(BatchStatistics)
    meaning = "One bad batch can undo many good steps"
    remedies = (INSPECT_THE_BATCH, GUARD_AGAINST_SPIKES)

    batches = Limit(5, "steps until the loss is back: what lasts longer is not of a few batches")

    def observe(self, view: FrameView) -> Judgement | None:
        batches, spike = self._batches, self._batches.spikes.spike
        if batches.proof is not None or "odd-batch" in batches.open_variants:
            return None
        if spike is None or not spike.is_harmful:
            return self.end()
        is_short = spike.over_after is not None and spike.over_after <= self.batches
        is_proved = spike.step <= batches.odd_step <= spike.step + self.batches
        if is_proved or not (is_short or spike.was_of_a_batch):
            return self.stay()
        return self.hold((spike.step, is_short), lambda: _describe(spike))


def _describe(spike: Spike) -> Judgement:
    lasted = "" if spike.over_after is None else f" and was back after {count_of(spike.over_after, 'step')}"
    evidence = (Evidence("loss", None, spike.value, spike.before, f"leapt in one step{lasted}"),)
    summary = (
        f"The batch at step {spike.step} was probably bad: the loss leapt from {spike.before:.3g} to "
        f"{spike.value:.3g} in one step{lasted}."
    )
    return Judgement(Severity.MODERATE, (), spike.step, 0.6, summary, evidence)
