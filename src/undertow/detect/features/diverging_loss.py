"""A loss that rises, and what else tells a model that falls apart from one whose targets or terms grow."""

import math
from collections import deque
from statistics import median

from undertow.detect.engine import FrameView, Limit, Tracker
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.schema import LossKind

_OF_CLASSES = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)


class DivergingLoss(Tracker):
    """`records` are steps whose loss exceeded all before it; `chance` is chance level where the loss began near it."""

    is_of_one_training = True
    order = ("growing-loss", "forgotten", "thrown-off-at-start")

    first_losses = Limit(10, "losses: by then the highest of an untrained model has shown itself")
    record_by = Limit(1.1, "times all losses before: batch noise makes such a record now and then")
    records_in_a_row = Limit(4, "records: batch noise never makes a row of them")
    large_update = Limit(0.1, "of the weights, median over matrices: a witness where targets may grow")
    leaps_to = Limit(1.5, "times the first loss: batch noise of an untrained model is a few per cent")
    learnt_to = Limit(0.6, "of the first losses: enough to lose")
    implausible_start = Limit(3.0, "first loss over chance level: it is no plain cross-entropy")
    learnt_accuracy = Limit(0.6, "of the answers right: learnt, however few classes there are…")
    kept_accuracy = Limit(0.9, "of the best accuracy: …and not lost, so that another term of the loss rises")

    def __init__(self) -> None:
        self.chance = math.nan
        self.highest_early = 0.0
        self.records: list[int] = []
        self.large_step = self.large_step_since_best = -(10**9)
        self._record = math.nan
        self._accuracies: deque[float] = deque(maxlen=3)
        self._best_accuracy = 0.0

    def follow(self, view: FrameView) -> None:
        loss = view.loss
        if loss is None or not loss.positive or loss.actors > 1:
            return
        kind = view.frame.scalars.get("loss_kind")
        if kind is not None:
            chance = chance_level(view) if kind in _OF_CLASSES else math.nan
            self.chance = chance if loss.first < self.implausible_start * chance else math.nan
        accuracy = view.frame.scalars.get("output_accuracy", math.nan)
        if accuracy == accuracy:
            self._accuracies.append(accuracy)
            self._best_accuracy = max(self._best_accuracy, median(self._accuracies))
        if loss.value >= self.leaps_to * min(loss.first, loss.best) and view.row("update_ratio") is not None:
            self._follow_updates(view, loss)
        if loss.seen <= self.first_losses:
            self.highest_early = max(self.highest_early, loss.value)
        if loss.seen == 1:
            self._record = loss.value
        elif loss.value > self.record_by * self._record:
            self._record = loss.value
            self.records.append(loss.step)
            del self.records[: -int(self.records_in_a_row)]

    def _follow_updates(self, view: FrameView, loss: Loss) -> None:
        if middle(matrices_of(view.layout).update_ratios(view)) > self.large_update:
            self.large_step_since_best = view.step
            if loss.value >= self.leaps_to * loss.first:
                self.large_step = view.step

    @property
    def knows_chance(self) -> bool:
        """A cross-entropy has a natural size. It may still be one term of several: not while the answers stay right."""
        if self.chance != self.chance:
            return False
        if len(self._accuracies) < 2 or self._best_accuracy < self.learnt_accuracy:
            return True
        return median(self._accuracies) < self.kept_accuracy * self._best_accuracy
