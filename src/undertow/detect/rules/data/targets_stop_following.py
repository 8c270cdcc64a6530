"""DAT004: from one step on, the targets no longer follow from the inputs."""

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.odd_batches import OddBatches
from undertow.detect.features.remedies import CHECK_THE_LABELS, INSPECT_THE_BATCH
from undertow.detect.features.spike import Spike
from undertow.schema import Evidence, Severity


class TargetsStopFollowing(Condition):
    """From one step on the loss is as high as that of the untrained model, and nothing is learnt any more.

    What it sees: A loss of a natural size (a cross-entropy, or the error of targets that keep their size) that leaps
        from one step to the next, after steps as long as those before, and is as high as at the start for twenty-five
        losses, none of which is learnt, though no step since has thrown the weights about.
    Why it is bad: What the model has learnt holds for the data before. Labels of another file, rows that are off by
        some lines, or a join that is lost half-way are the usual reasons; to go on with them undoes what was learnt.
    When it is wrong: Another task begins as high, and is being learnt twenty-five losses later; one that takes longer
        is reported. Inputs that are nothing but noise look the same. Where the loss is back as suddenly, it was a row
        of bad batches (DAT002).
    References: Zhang et al., "Understanding deep learning requires rethinking generalization", 2016 (arXiv 1611.03530).
    """

    code, variant = "DAT004", "targets-stop-following"
    places = ("target",)
    stage = Stage.OPTIMIZER
    _batches = Shared(OddBatches)
    meaning = "What was learned before is undone, and nothing can be learned in its place"
    remedies = (CHECK_THE_LABELS, INSPECT_THE_BATCH)

    def observe(self, view: FrameView) -> Judgement | None:
        leap, loss = self._batches.changed, view.loss
        if loss is None:
            return self.stay()
        if leap is None or not self._batches.is_lasting:
            return self.end()
        return self.hold(leap.step, lambda: _describe(leap, loss))


def _describe(leap: Spike, loss: Loss) -> Judgement:
    how = "loss since then, and before; the updates before were of the usual size"
    summary = (
        f"The data changed at step {leap.step}: the loss jumped from {leap.before:.3g} to {leap.value:.3g} after "
        "updates of the usual size. Since then the targets look unrelated to the inputs."
    )
    evidence = (Evidence("loss", None, loss.level, leap.before, how),)
    return Judgement(Severity.SEVERE, (), leap.step, 0.75, summary, evidence)
