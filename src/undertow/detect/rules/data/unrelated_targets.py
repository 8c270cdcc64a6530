"""DAT004: predictions match their own targets no better than shuffled ones."""

from statistics import fmean

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, Limit, Shared, Stage
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.module_structure import is_mostly_frozen
from undertow.detect.features.remedies import CHECK_THE_LABELS, OVERFIT_ONE_BATCH
from undertow.detect.features.target_agreement import TargetAgreement
from undertow.schema import Evidence, LayerKind, Severity

_RECENT = 16  # measured steps


class UnrelatedTargets(Condition):
    """Predictions match their own targets no better than shuffled ones.

    What it sees: Whatever the loss: predictions that fit their own targets no better than those of other samples of the
        batch, as a test by exchange says at each of 32 measured steps, although the weights move well and have gone a
        part of their size.
    Why it is bad: Labels that were shuffled apart from their inputs, or read from the wrong column, can only be
        memorised.
    When it is wrong: It cannot tell wrong labels from a task that is very hard to begin with: confidence is low.
        Samples that come again within the first steps are memorised so soon that nothing is seen. A relation that
        is weak but proved by the exchange is left alone; a weaker one (rare clicks that follow from little of what is
        known) may be taken for none.
    References: Zhang et al., "Understanding deep learning requires rethinking generalization", 2016 (arXiv 1611.03530).
        Ben Braiek and Khomh, "Testing Feedforward Neural Networks Training Programs", 2022 (arXiv 2204.00694).
    """

    code, variant, formerly = "DAT004", "unrelated-targets", "unrelated"
    places = ("target",)
    stage, is_standing, is_of_targets = Stage.OUTCOME, True, True
    _agreement = Shared(TargetAgreement)
    meaning = "The model can only memorise such data, and learns nothing that generalises"
    remedies = (CHECK_THE_LABELS, OVERFIT_ONE_BATCH)

    # In 130 healthy programs the mean is above these within 45 steps; where tables of hundreds of rows are learnt, 123.
    none = Limit(0.5, "deviations of chance, mean of 32 measured steps")
    recent_none = Limit(0.3, "the same of the latest 16: more, and a weak relation is being found")
    patience = Limit.learning(110, "steps: a twentieth of the variance, all that some targets tell, shows in 80 to 100")
    per_row = Limit(0.5, "of a step to each row of a table, which learns only when it is looked up")
    drift = Limit(0.08, "of their size, that the weights must have moved")
    falling = Limit(0.1, "of the loss, by which it fell over the later half of all steps: it is on its way yet")
    slowest, fastest = Limit(3e-4, "update over weight: mean"), Limit(0.1, "update over weight: largest")

    def __init__(self) -> None:
        self._found = False  # more than chance, at some time

    def observe(self, view: FrameView) -> Judgement | None:
        agreement, loss = self._agreement, view.loss
        if not agreement.is_measured or loss is None or not agreement.is_full or self._found:
            return self.stay()
        mean = fmean(agreement.latest)
        if abs(mean) > self.none:  # to be wrong more often than by chance is a relation, too
            self._found = True
            return self.stay()  # perhaps by heart: what was said stays
        recent = fmean(list(agreement.latest)[-_RECENT:])
        if recent > self.recent_none or not self._had_time(view, loss):
            return self.stay()
        return self.hold(None, lambda: self._describe(mean))

    def _had_time(self, view: FrameView, loss: Loss) -> bool:
        if is_mostly_frozen(view.layout):
            return False
        if loss.positive and loss.falling and -loss.slope * loss.span > self.falling * loss.level:
            return False  # what is the same for all samples is learnt first: a mean, a rare class
        patience = max(self.patience, self.per_row * view.layout.derived(_rows_of_tables))
        paces = self._agreement.paces
        moves_well = len(paces) > 0 and self.slowest < fmean(paces) and max(paces) < self.fastest
        return loss.seen >= patience and self._agreement.drift > self.drift and moves_well

    def _describe(self, mean: float) -> Judgement:
        how = (
            "how much better predictions fit their own targets than shuffled ones, in standard deviations: "
            f"mean of {len(self._agreement.latest)} measured steps"
        )
        evidence = (
            Evidence("output_agreement", None, mean, None, how),
            Evidence("weight_drift", None, self._agreement.drift, None, "median matrix: the weights moved"),
        )
        summary = (
            "Predictions match their own targets no better than shuffled ones: the labels look unrelated to the inputs."
        )
        return Judgement(Severity.MODERATE, (), self._agreement.since, 0.6, summary, evidence)


def _rows_of_tables(layout: LayerIndex) -> int:
    tables = [layer.shape[0] for layer in layout.layers if layer.kind == LayerKind.EMBEDDING and layer.shape]
    return max(tables, default=0)
