"""OPT001: the loss diverges, or what was learnt is lost."""

import math
from collections import deque
from statistics import median

import numpy as np

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, LayerValues, Limit, Stage
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.remedies import CLIP_GRADIENTS, LOWER_LEARNING_RATE, WARM_UP
from undertow.schema import Evidence, GradientState, LossKind, Severity

_OF_CLASSES = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)


class DivergingLoss(Condition):
    """The loss rises instead of falling: record after record, back to its start, or at once.

    What it sees: A loss that again and again exceeds everything before it by a tenth, until its median is twice the
        highest of the first losses. Or one that had fallen to less than 60 % of its start and has been back there for
        twenty-five steps without coming down. Or a cross-entropy that begins near chance level and within its first
        forty losses is half as high again, or five times as high for nine losses in a row.
    Why it is bad: Training makes the model worse. It seldom comes back on its own, and often ends in NaN; what comes
        after it begins anew, from worse weights.
    When it is wrong: Losses below zero and optimizers in turn are left out. The loss of moving targets (values in
        reinforcement learning), or one of which a term is given more weight, grows on purpose: without a cross-entropy
        whose answers become wrong, large updates or a hundredfold growth this is only a hint; so it is where layers
        have begun to be trained since, as the head of another task. One jump to a higher level (harder data) is no row
        of records, and is being learnt twenty-five steps later.
    References: Zhang et al., "AUTOTRAINER: An Automatic DNN Training Problem Detection and Repair System", 2021.
        Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023 (arXiv
        2309.14322).
    """

    code, variant = "OPT001", "diverging-loss"
    places = ("rate",)
    formerly = "growing lost thrown growing-loss forgotten thrown-off-at-start"
    stage, is_vague = Stage.COURSE, True
    is_of_one_training = True
    remedies = (LOWER_LEARNING_RATE, WARM_UP, CLIP_GRADIENTS)

    first_losses = Limit.start(10, "losses: by then the highest of an untrained model has shown itself")
    record_by = Limit(1.1, "times all losses before: batch noise makes such a record now and then")
    records_in_a_row = Limit(4, "records: batch noise never makes a row of them")
    grown_to = Limit(2.0, "times the highest of the first losses, for the median of nine")
    at_once = Limit(5.0, "times the first loss and chance level, for nine losses in a row: no warm-up stays there…")
    early = Limit.start(40, "losses: …and no batch explains it, as the first steps alone can have made it")
    beyond_doubt = Limit(100.0, "times the first loss; less needs a witness, where targets may grow")
    large_update = Limit(0.1, "of the weights, median over matrices: such a witness")
    explained_by = Limit.memory(20, "steps for which a large update may explain a loss")
    leaps_to = Limit(1.5, "times the first loss: batch noise of an untrained model is a few per cent")
    learnt_to = Limit(0.6, "of the first losses: enough to lose")
    back_to = Limit(0.85, "of the first losses: all of the latest nine losses are above it")
    back_for = Limit.learning(25, "losses in a row: another task, or harder data, is learnt by then")
    recovering = Limit(0.9, "of the level of twelve losses ago: it is being learnt")
    thrown_to = Limit(1.5, "times the first loss and chance level, for the median of nine; 1.2 is the most in health")
    implausible_start = Limit(3.0, "first loss over chance level: it is no plain cross-entropy")
    learnt_accuracy = Limit(0.6, "of the answers right: learnt, however few classes there are…")
    kept_accuracy = Limit(0.9, "of the best accuracy: …and not lost, so that another term of the loss rises")

    _had = LayerValues(np.bool_, False)  # a gradient, ever

    def __init__(self) -> None:
        self._signs: dict[str, bool] = {}  # those that hold, and whether they are certain
        self._has_grown = False
        self._chance = math.nan  # chance level, where the loss began near it
        self._highest_early = 0.0
        self._record = math.nan
        self._records: list[int] = []  # steps whose loss exceeded all before it
        self._large_step = self._large_step_since_best = -(10**9)
        self._accuracies: deque[float] = deque(maxlen=3)
        self._best_accuracy = 0.0
        self._high, self._above = Consecutive(), Consecutive()  # losses near the start or higher; above the untrained
        self._back_for = 0
        self._levels: deque[float] = deque(maxlen=12)
        self._joined = -1  # the latest step at which a layer got its first gradient

    def observe(self, view: FrameView) -> Judgement | None:
        loss = view.loss
        if loss is None:
            return self.stay()
        if not loss.positive or loss.actors > 1:
            self._signs.clear()
            return self.end()
        self._follow(view, loss)
        self._grows(loss)
        if loss.seen > self.first_losses:
            self._is_lost(loss)
        self._is_thrown_off(loss)
        if not self._signs:
            return self.end()
        sign = max(self._signs, key=lambda one: self._signs[one])
        return self.hold((sign, self._signs[sign]), lambda: self._describe(loss, sign, self._signs[sign]))

    def _follow(self, view: FrameView, loss: Loss) -> None:
        states, ids = view.row("gradient_state"), view.ids("gradient")
        if states is not None and ids is not None:
            first = ids[(states == GradientState.PRESENT) & ~self._had[ids]]
            if len(first):
                self._had[first] = True
                self._joined = view.step
        kind = view.frame.scalars.get("loss_kind")
        if kind is not None:
            chance = chance_level(view) if kind in _OF_CLASSES else math.nan
            self._chance = chance if loss.first < self.implausible_start * chance else math.nan
        accuracy = view.frame.scalars.get("output_accuracy", math.nan)
        if accuracy == accuracy:
            self._accuracies.append(accuracy)
            self._best_accuracy = max(self._best_accuracy, median(self._accuracies))
        is_high = loss.value >= self.leaps_to * min(loss.first, loss.best)
        if is_high and middle(matrices_of(view.layout).update_ratios(view)) > self.large_update:
            self._large_step_since_best = view.step
            if loss.value >= self.leaps_to * loss.first:
                self._large_step = view.step
        self._high.follow(loss.value >= self.back_to * self._untrained(loss), loss.step)
        self._above.follow(loss.value > loss.first, loss.step)
        if loss.seen <= self.first_losses:
            self._highest_early = max(self._highest_early, loss.value)
        if loss.seen == 1:
            self._record = loss.value
        elif loss.value > self.record_by * self._record:
            self._record = loss.value
            self._records.append(loss.step)
            del self._records[: -int(self.records_in_a_row)]

    @property
    def _knows_chance(self) -> bool:
        """A cross-entropy has a natural size. It may still be one term of several: not while the answers stay right."""
        if self._chance != self._chance:
            return False
        if len(self._accuracies) < 2 or self._best_accuracy < self.learnt_accuracy:
            return True
        return median(self._accuracies) < self.kept_accuracy * self._best_accuracy

    def _grows(self, loss: Loss) -> None:
        # The highest of the first losses is itself a record where a run explodes at once.
        base = min(self._highest_early, 2 * loss.first)
        base = max(base, self._chance) if self._chance == self._chance else base
        if loss.level < self.grown_to * base or loss.seen == 1:
            self._signs.pop("growing", None)
            return
        natural = max(loss.first, self._chance) if self._knows_chance else math.inf
        at_once = loss.low > self.at_once * natural and loss.seen <= self.early
        if at_once or (len(self._records) == self.records_in_a_row and loss.noise <= loss.level):
            is_witnessed = self._large_step >= self._records[0] - self.explained_by
            is_sure = self._knows_chance or loss.level > self.beyond_doubt * loss.first or is_witnessed
            self._signs["growing"] = is_sure
            self._has_grown = True

    def _untrained(self, loss: Loss) -> float:
        """Of another task, with more classes, too: its loss begins at their chance level."""
        return max(loss.start, self._chance) if self._chance == self._chance else loss.start

    def _is_lost(self, loss: Loss) -> None:
        """It had fallen well below its start and is back there."""
        if not loss.best < self.learnt_to * loss.start or loss.low < self.back_to * self._untrained(loss):
            self._back_for = 0
            self._levels.clear()
            self._signs.pop("lost", None)
            return
        self._back_for += 1
        self._levels.append(loss.level)
        is_recovering = loss.level < self.recovering * self._levels[0] and "lost" not in self._signs
        if self._back_for >= self.back_for and not is_recovering:
            # A loss of several terms also rises because one of them is given more weight, or joins: what has begun to
            # be trained since the loss was at its best, as the head of another task, cannot have lost anything.
            is_same_loss = self._joined <= loss.best_step
            is_witnessed = self._large_step_since_best >= loss.best_step
            self._signs["lost"] = is_witnessed or (self._knows_chance and is_same_loss)

    def _is_thrown_off(self, loss: Loss) -> None:
        """The first steps have made a classifier worse than one that has learnt nothing."""
        untrained = max(loss.first, self._chance)
        is_rising = bool(self._records) and loss.step - self._records[-1] < self.records_in_a_row
        if self._has_grown or is_rising or loss.level < untrained:
            self._signs.pop("thrown off", None)
            return
        is_start = self.first_losses <= loss.seen <= self.early and loss.best >= self.learnt_to * loss.start
        if is_start and self._knows_chance and loss.level > self.thrown_to * untrained:
            self._signs["thrown off"] = False

    def _describe(self, loss: Loss, sign: str, is_sure: bool) -> Judgement:
        severity, confidence = (Severity.SEVERE, 0.9) if is_sure else (Severity.MILD, 0.5)
        before, how, since = loss.first, "median of the latest losses, and the first one", self._above.since
        if sign == "growing":
            since = self._records[0]
            summary = f"The loss grows: {loss.first:.3g} at the start, {loss.level:.3g} at step {loss.step}."
        elif sign == "lost":
            before, how, since = loss.best, f"now, and at its best at step {loss.best_step}", self._high.since
            is_back = loss.level < self.grown_to * loss.start
            where = f"back at {loss.level:.3g}, where it started" if is_back else (
                f"{loss.level:.3g} now, far above the {loss.start:.3g} that it started with"
            )  # fmt: skip
            summary = (
                f"What was learned is lost: the loss had fallen to {loss.best:.3g} by step {loss.best_step} and is "
                f"{where}."
            )
        else:
            severity, confidence = Severity.MODERATE, 0.7
            summary = (
                f"The first steps made the model worse: its loss was {loss.first:.3g} before training "
                f"and is {loss.level:.3g} after {loss.seen} steps."
            )
        evidence = Evidence("loss", None, loss.level, before, how)
        return Judgement(severity, (), since, confidence, summary, (evidence,))
