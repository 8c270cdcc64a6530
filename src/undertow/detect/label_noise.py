"""Labels of which a part is wrong: the answers that are missed are missed at random."""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.features.progress import has_learnt
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

# Step, how many were missed, mean rank of their labels, how sure it was, of how many.
_Look = tuple[int, float, float, float, float]


class LabelNoise:
    """Of a classifier with one label for each sample that has learnt a part of its task."""

    def __init__(self) -> None:
        self._condition = Condition("noise")
        self._factor, self._mixed = math.nan, False
        self._latest: deque[float] = deque(maxlen=5)
        self._looks: deque[_Look] = deque(maxlen=limit.MISSED_LOOKS)

    @property
    def is_open(self) -> bool:
        return self._condition.is_open

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        rank, classes = view.scalar("output_miss_rank"), view.scalar("loss_classes")
        loss = view.loss
        if math.isnan(rank) or loss is None or loss.actors > 1 or loss.seen < limit.MISSED_AFTER:
            return self._condition.stay()
        factor = view.scalar("loss_factor")
        self._mixed |= abs(factor - self._factor) > 0.01 * abs(factor)
        self._factor = factor
        # A share that is drawn anew for each batch: samples are mixed, and these are half of the labels.
        if self._mixed:
            return self._condition.end()
        accuracy, chance = view.scalar("output_accuracy"), 1 / classes
        self._latest.append(accuracy)
        if fmean(self._latest) < chance + limit.MISSED_LEARNT * (1 - chance) or not has_learnt(loss):
            self._looks.clear()  # it knows too little still: every class is as likely
            return self._condition.stay()
        sure = view.scalar("output_max_probability") / max(accuracy, chance)
        rows = view.scalar("loss_rows")
        self._looks.append((view.step, rows * (1 - accuracy), rank, sure, rows))
        missed = sum(one[1] for one in self._looks)
        later = list(self._looks)[len(self._looks) // 2 :]  # before, more was to be learnt
        share = _share(later)
        if len(self._looks) < limit.MISSED_LEAST_LOOKS or missed < limit.MISSED_LEAST:
            return self._condition.stay()
        mean = sum(one[1] * one[2] for one in self._looks) / missed
        earlier = list(self._looks)[: len(self._looks) // 2]
        is_learning = share < limit.MISSED_FALLING * _share(earlier)  # what is missed may be right, and learnt soon
        # Answers that are right more often than the model believes are still being learnt: all ranks are close.
        unsure = fmean(one[3] for one in later) < limit.MISSED_SURE
        if mean < limit.MISSED_AT_RANDOM or share < limit.MISSED_SHARE or is_learning or unsure:
            return self._condition.stay()
        return self._condition.hold(None, lambda: self._verdict(mean, share))

    def _verdict(self, mean: float, share: float) -> Verdict:
        how = "where the label of a wrong answer stands among the other classes: 0 next, 1 last, 0.5 at random"
        evidence = (
            Evidence("output_miss_rank", None, mean, 0.2, how),
            Evidence("output_accuracy", None, 1 - share, None, "share of answers that are right"),
        )
        summary = (
            f"The model has learnt to answer, and {share:.0%} of the labels contradict it at random: they are not even "
            "its next guess. A part of the labels is probably wrong."
        )
        return Verdict("noise", True, Severity.MODERATE, (), self._looks[0][0], 0.6, summary, evidence)


def _share(looks: list[_Look]) -> float:
    """Of all answers that were missed; the last batch of an epoch may hold few."""
    return sum(one[1] for one in looks) / sum(one[4] for one in looks)
