"""DAT004: a part of the labels is wrong."""

import math
from collections import deque
from statistics import fmean

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import CHECK_THE_LABELS, OVERFIT_ONE_BATCH
from undertow.detect.features.target_agreement import TargetAgreement
from undertow.schema import Evidence, Severity

# Step, how many were missed, mean rank of their labels, how sure it was, of how many.
_Measured = tuple[int, float, float, float, float]


class LabelNoise(Condition):
    """A part of the labels is wrong.

    What it sees: A classifier with one label for each sample that has learnt a quarter of its task or more, and whose
        wrong predictions have the label anywhere among the other classes, in place of next to the first.
    Why it is bad: Wrong labels can only be memorised, at the cost of what holds for new data.
    When it is wrong: Wrong labels that are memorised look like right ones, and below four classes, or a third of
        the labels, they are not seen. Labels that cannot be known by chance (a game of dice) look like wrong ones.
    References: Zhang et al., "Understanding deep learning requires rethinking generalization", 2016 (arXiv 1611.03530).
    """

    code, variant, formerly = "DAT004", "label-noise", "noise"
    places = ("target",)
    stage, is_standing = Stage.OUTCOME, True
    _agreement = Shared(TargetAgreement)
    meaning = "The model can only memorise wrong labels, and gets worse on new data as it does"
    remedies = (CHECK_THE_LABELS, OVERFIT_ONE_BATCH)

    learnt = Limit(0.25, "accuracy between chance and 1: with less, every class is as likely")
    at_random = Limit(0.33, "mean rank of missed labels; 0.05 to 0.2 in health, 0.4 to 0.5 of labels mixed up")
    share = Limit(0.3, "of the predictions at the later half of the steps: a fifth of wrong labels does no harm")
    falling = Limit(0.9, "times as many as at the earlier half, or fewer: the rest may be learnt, too")
    sure = Limit(0.75, "of how often it is right, the model says itself; 1 and more where labels are wrong")
    least = Limit(150, "missed labels in all, for a mean rank that is certain")
    after = Limit.learning(30, "losses: before, what is learnt changes with every step")
    least_steps = Limit.sample(8, "measured steps")

    def __init__(self) -> None:
        self._factor, self._mixed = math.nan, False
        self._latest: deque[float] = deque(maxlen=5)
        self._measured: deque[_Measured] = deque(maxlen=24)

    def observe(self, view: FrameView) -> Judgement | None:
        if "unrelated-targets" in self._agreement.open_variants:
            return None
        rank, classes = view.scalar("output_miss_rank"), view.scalar("loss_classes")
        loss = view.loss
        if math.isnan(rank) or loss is None or loss.actors > 1 or loss.seen < self.after:
            return self.stay()
        factor = view.scalar("loss_factor")
        self._mixed |= abs(factor - self._factor) > 0.01 * abs(factor)
        self._factor = factor
        # A share that is drawn anew for each batch: samples are mixed, and these are half of the labels.
        if self._mixed:
            return self.end()
        accuracy, chance = view.scalar("output_accuracy"), 1 / classes
        self._latest.append(accuracy)
        if fmean(self._latest) < chance + self.learnt * (1 - chance) or not has_learnt(loss):
            self._measured.clear()  # it knows too little still: every class is as likely
            return self.stay()
        sure = view.scalar("output_max_probability") / max(accuracy, chance)
        rows = view.scalar("loss_rows")
        self._measured.append((view.step, rows * (1 - accuracy), rank, sure, rows))
        missed = sum(one[1] for one in self._measured)
        later = list(self._measured)[len(self._measured) // 2 :]  # before, more was to be learnt
        share = _share(later)
        if len(self._measured) < self.least_steps or missed < self.least:
            return self.stay()
        mean = sum(one[1] * one[2] for one in self._measured) / missed
        earlier = list(self._measured)[: len(self._measured) // 2]
        is_learning = share < self.falling * _share(earlier)  # what is missed may be right, and learnt soon
        # Predictions that are right more often than the model believes are still being learnt: all ranks are close.
        unsure = fmean(one[3] for one in later) < self.sure
        if mean < self.at_random or share < self.share or is_learning or unsure:
            return self.stay()
        return self.hold(None, lambda: self._describe(mean, share))

    def _describe(self, mean: float, share: float) -> Judgement:
        how = "where the label of a wrong prediction stands among the other classes: 0 next, 1 last, 0.5 at random"
        evidence = (
            Evidence("output_miss_rank", None, mean, 0.2, how),
            Evidence("output_accuracy", None, 1 - share, None, "share of predictions that are right"),
        )
        summary = (
            f"{share:.0%} of the labels contradict the predictions at random, not even as the second choice: some "
            "labels are probably wrong."
        )
        return Judgement(Severity.MODERATE, (), self._measured[0][0], 0.6, summary, evidence)


def _share(measured: list[_Measured]) -> float:
    """Of all predictions, those that were missed; the last batch of an epoch may hold few."""
    return sum(one[1] for one in measured) / sum(one[4] for one in measured)
