"""DAT002: a batch that is unlike the others, measured or suspected, and makes the loss leap."""

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.odd_batches import LEAP, OddBatches
from undertow.detect.features.remedies import GUARD_AGAINST_SPIKES, INSPECT_THE_BATCH
from undertow.detect.features.spike import Spike
from undertow.detect.features.wording import count_of
from undertow.schema import Evidence, Severity


class BadBatch(Condition):
    """One batch, or a few, is not like the others, and the loss leaps with it.

    What it sees: A loss more than eight robust deviations above the latest ones and at least e times as large, together
        with what the batch itself was: inputs or targets five times further off than in any batch before, or labels
        that are suddenly all alike. Inputs a hundred times further off need no such loss. Where the batch was not
        measured: a loss that leaps out of a calm course, is worse than that of the untrained model and is back within
        five steps, or is twenty times as high as that; or one that was as high as at the start for dozens of losses,
        after steps as long as those before, and is back as suddenly.
    Why it is bad: A single step on a broken batch can undo hundreds of good ones: gradients are as large as the batch
        is wrong.
    When it is wrong: Harder data change the loss, and neither the size of the inputs by such a factor nor for a few
        steps only. Other data for good (a new phase) look like a bad batch at first. Without a measurement of the
        batch, an optimizer near the edge of stability can look the same: confidence is low.
    References: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (arXiv 2204.02311), section 5.1.
    """

    code, variant, formerly = "DAT002", "bad-batch", "batch suspect odd-batch suspected-batch"
    stage, is_momentary = Stage.OPTIMIZER, True
    _batches = Shared(OddBatches)
    meaning = "One bad batch can undo many good steps"
    remedies = (INSPECT_THE_BATCH, GUARD_AGAINST_SPIKES)

    leap = LEAP
    ratio = Limit(2.718, "times the loss before")
    over_after = Limit.memory(20, "steps since the last odd batch: what it did has healed or not by then")
    batches = Limit.memory(5, "steps until the loss is back: what lasts longer is not of a few batches")

    def __init__(self) -> None:
        self._is_measured = False  # what is open was seen in the batch itself

    def observe(self, view: FrameView) -> Judgement | None:
        batches, loss = self._batches, view.loss
        if batches.proof is not None and loss is not None:
            return self._observe_proof(view.step, loss, batches.proof)
        if self._is_measured:
            self._is_measured = view.step - batches.odd_step <= self.over_after
            return self.stay() if self._is_measured else self.end()
        spike = batches.spikes.spike
        if batches.over is not None:
            leap = batches.over
            return self.hold(("over", leap.step), lambda: _describe_over(leap, view.step))
        if spike is None or not spike.is_harmful:
            return self.end()
        is_short = spike.over_after is not None and spike.over_after <= self.batches
        is_proved = spike.step <= batches.odd_step <= spike.step + self.batches
        if is_proved or not (is_short or spike.was_of_a_batch):
            return self.stay()
        return self.hold((spike.step, is_short), lambda: _describe_suspect(spike))

    def _observe_proof(self, step: int, loss: Loss, proof: Evidence) -> Judgement | None:
        leaps = loss.jump > self.leap and loss.ratio >= self.ratio
        if not (self._is_measured or leaps or self._batches.is_absurd):
            return None
        self._is_measured = True
        return self.hold("measured", lambda: _describe(step, loss, proof) if leaps else _describe_absurd(step, proof))


def _describe(step: int, loss: Loss, proof: Evidence) -> Judgement:
    how = f"loss of the batch at step {step}, and at its best before"
    leap = Evidence("loss", None, loss.value, loss.best, how)
    summary = (
        f"The batch at step {step} is not like the others ({proof.quantity.replace('_', ' ')} {proof.value:.3g} "
        f"instead of {proof.expected:.3g}), and the loss jumped to {loss.value:.3g}."
    )
    return Judgement(Severity.SEVERE, (), step, 0.9, summary, (proof, leap))


def _describe_absurd(step: int, proof: Evidence) -> Judgement:
    summary = (
        f"The batch at step {step} is not like the others ({proof.quantity.replace('_', ' ')} {proof.value:.3g} "
        f"instead of {proof.expected:.3g}): averages of the data, as batch normalisation keeps them, take it in."
    )
    return Judgement(Severity.MODERATE, (), step, 0.8, summary, (proof,))


def _describe_over(leap: Spike, step: int) -> Judgement:
    how = "loss of the first of them, and before"
    summary = (
        f"The batches of steps {leap.step} to {step - 1} were bad: the loss jumped from {leap.before:.3g} to "
        f"{leap.value:.3g} in one step, stayed there, and fell again as suddenly."
    )
    evidence = (Evidence("loss", None, leap.value, leap.before, how),)
    return Judgement(Severity.SEVERE, (), leap.step, 0.75, summary, evidence)


def _describe_suspect(spike: Spike) -> Judgement:
    lasted = "" if spike.over_after is None else f" and was back after {count_of(spike.over_after, 'step')}"
    evidence = (Evidence("loss", None, spike.value, spike.before, f"jumped in one step{lasted}"),)
    summary = (
        f"The batch at step {spike.step} was probably bad: the loss jumped from {spike.before:.3g} to "
        f"{spike.value:.3g} in one step{lasted}."
    )
    return Judgement(Severity.MODERATE, (), spike.step, 0.6, summary, evidence)
