"""OPT003: the loss leaps up, and comes back."""

from undertow.detect.engine import Condition, FrameView, Judgement, Stage
from undertow.detect.features.remedies import GUARD_AGAINST_SPIKES, INSPECT_THE_BATCH, WARM_UP
from undertow.detect.features.spike import Spike, SpikeWatch
from undertow.detect.features.wording import count_of
from undertow.schema import Evidence, Severity


class LossSpike(Condition):
    """The loss leaps up out of a calm course, and comes back.

    What it sees: A loss more than eight robust deviations above the median of the latest ones, on a logarithmic scale,
        at least e times as large, and twice as large as any of the thirty losses before it. It is a hint when it
        happens and an alarm once the loss has come back to near where it was within a few steps, for then it was no
        change of task, or at once when it is twenty times as high as that of the untrained model.
    Why it is bad: The steps taken in a spike undo work, and the next spike may not end. Typical causes are a rate near
        the edge of what the model bears, an optimizer whose second moment lags behind, or a bad batch (DAT002).
    When it is wrong: Losses that differ from step to step by design (several tasks, a term added every tenth step) have
        been as high before. A restart of the learning rate explains a spike and is left alone. A jump that stays is
        harder data or divergence (OPT001); so is one that is highest when it begins and then falls little by little, as
        other data are learnt: a hint only.
    References: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (arXiv 2204.02311), section
        5.1.
        Wortsman et al., "Stable and low-precision training for large-scale vision-language models", 2023 (arXiv
        2304.13013).
    """

    code, variant, formerly = "OPT003", "loss-spike", "spike"
    stage, is_momentary, is_vague = Stage.COURSE, True, True
    is_of_one_training = True
    remedies = (INSPECT_THE_BATCH, GUARD_AGAINST_SPIKES, WARM_UP)

    def __init__(self) -> None:
        self._watch = SpikeWatch()

    def observe(self, view: FrameView) -> Judgement | None:
        self._watch.observe(view)
        spike = self._watch.spike
        if spike is None:
            return self.end()
        return self.hold((spike.step, spike.over_after, spike.is_harmful), lambda: self._describe(spike))

    def _describe(self, spike: Spike) -> Judgement:
        ending = "" if spike.over_after is None else f" and was back after {count_of(spike.over_after, 'step')}"
        how = f"highest loss since step {spike.step}, and the level before it"
        evidence = Evidence("loss", None, spike.peak, spike.before, how)
        summary = f"The loss jumped from {spike.before:.3g} to {spike.peak:.3g} at step {spike.step}{ending}."
        severity = Severity.MODERATE if spike.is_harmful else Severity.MILD
        return Judgement(severity, (), spike.step, 0.7, summary, (evidence,))
