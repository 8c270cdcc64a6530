"""OPT001."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

_OF_ANSWERS = frozenset({"loss_kind", "output_accuracy"})


class DivergingLoss:
    """The loss grows and grows, or all that was learnt is lost again.

    What it sees
    ------------
    New records: a loss that again and again exceeds everything before it by a tenth, until its median is twice the
    highest of the first losses. Or a loss that had fallen well below its start and has since been back there for
    twenty-five steps, every single one of them, without coming down again. Or a cross-entropy that begins near that of
    a guess, and within its first steps is five times as high for nine losses in a row, or has a median of nine that is
    half as high again as the first one and as that of a guess.

    Why it is bad
    -------------
    Training makes the model worse. It seldom comes back on its own, and often ends in NaN.

    When it is wrong
    ----------------
    Losses that go below zero (rewards, adversaries) have no natural size and are left out, and so are optimizers that
    step in turn: a generator's loss rises when its opponent learns. The loss of moving targets (values in reinforcement
    learning) grows with them, and a loss of which one term is given more and more weight (a prior) rises on purpose:
    without a cross-entropy whose answers become wrong, large updates or a hundredfold growth this is only a hint. One
    jump to a higher level (harder data, another task) is no row of records.

    References
    ----------
    Zhang et al., "AUTOTRAINER: An Automatic DNN Training Problem Detection and Repair System", 2021.
    Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023 (arXiv 2309.14322).
    """

    code: ClassVar[str] = "OPT001"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._growing, self._lost, self._thrown = Condition("growing"), Condition("lost"), Condition("thrown")
        self._has_grown = False
        self._highest_early = 0.0
        self._record = math.nan
        self._records: list[int] = []
        self._guess = math.nan  # the loss of a guess, for a cross-entropy that began near it
        self._large_step = self._large_step_since_best = -(10**9)
        self._accuracies: deque[float] = deque(maxlen=3)
        self._best_accuracy = 0.0
        self._back_for = 0
        self._levels: deque[float] = deque(maxlen=12)

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def attend(self, batch: FrameBatch) -> Iterator[Said]:
        teaches, large = batch.with_any(_OF_ANSWERS), batch.none()
        if batch.has("update"):
            sizes = matrices_of(batch.layout).middles(batch, "update_ratios")
            large[batch.frames_with("update")] = sizes > thresholds.DIVERGED_UPDATE
        closer = (teaches | large).tolist()
        for place, loss in enumerate(batch.losses):
            if closer[place] or loss is None or self._back_for or not self._is_low(loss):
                yield place, self.observe(batch.view(place))

    def _is_low(self, loss: Loss) -> bool:
        """Too low to be news, and to change what is remembered."""
        return (
            loss.value <= thresholds.RECORD_BY * self._record
            and loss.level < thresholds.DIVERGED_TO * self._base(loss)
            and (loss.low < thresholds.BACK_TO * loss.start or not loss.best < thresholds.LEARNT_TO * loss.start)
            and loss.seen > thresholds.DIVERGED_START
            and loss.positive
            and loss.actors == 1
            and not (self._growing.is_open or self._lost.is_open or self._thrown.is_open)
            and not self._is_worse_than_a_guess(loss)
        )

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.loss
        if loss is None:
            return (*self._growing.stay(), *self._lost.stay(), *self._thrown.stay())
        if not loss.positive or loss.actors > 1:
            return (*self._growing.end(), *self._lost.end(), *self._thrown.end())
        self._take(view)
        return (*self._observe_growing(loss), *self._observe_lost(loss), *self._observe_thrown(loss))

    def _take(self, view: FrameView) -> None:
        """What else tells a model that falls apart from one whose targets grow."""
        loss = view.loss
        assert loss is not None
        kind = view.frame.scalars.get("loss_kind")
        if kind is not None:
            crossed = kind in (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)
            guess = chance_level(view) if crossed else math.nan
            self._guess = guess if loss.first < thresholds.IMPLAUSIBLE_START * guess else math.nan
        accuracy = view.scalar("output_accuracy")
        if not math.isnan(accuracy):
            self._accuracies.append(accuracy)
            self._best_accuracy = max(self._best_accuracy, median(self._accuracies))
        if view.row("update_ratio") is None or loss.value < thresholds.LEAPS_TO * min(loss.first, loss.best):
            return
        if middle(matrices_of(view.layout).update_ratios(view)) > thresholds.DIVERGED_UPDATE:
            self._large_step_since_best = view.step
            if loss.value >= thresholds.LEAPS_TO * loss.first:
                self._large_step = view.step

    @property
    def _guesses(self) -> bool:
        """A cross-entropy has a natural size. It may still be one term of several: not while the answers stay right."""
        if self._guess != self._guess:
            return False
        if len(self._accuracies) < 2 or self._best_accuracy < thresholds.LEARNT_ACCURACY:
            return True
        return median(self._accuracies) < thresholds.KEPT_ACCURACY * self._best_accuracy

    def _observe_growing(self, loss: Loss) -> tuple[Verdict, ...]:
        if loss.seen <= thresholds.DIVERGED_START:
            self._highest_early = max(self._highest_early, loss.value)
            if loss.seen == 1:
                self._record = loss.value
                return ()
        if loss.value > thresholds.RECORD_BY * self._record:
            self._record = loss.value
            self._records.append(loss.step)
            del self._records[: -thresholds.DIVERGED_RECORDS]
        if loss.level < thresholds.DIVERGED_TO * self._base(loss):
            return self._growing.end()
        # One leap is enough where the first steps alone can have made it, and no batch: it stays up there.
        natural = max(loss.first, self._guess) if self._guesses else math.inf
        at_once = loss.low > thresholds.DIVERGED_AT_ONCE * natural and loss.seen <= thresholds.DIVERGED_AT_ONCE_WITHIN
        if not at_once and (len(self._records) < thresholds.DIVERGED_RECORDS or loss.noise > loss.level):
            return self._growing.stay()
        first = self._records[0]
        sure = self._guesses or loss.level > thresholds.DIVERGED_BEYOND_DOUBT * loss.first
        sure = sure or self._large_step >= first - thresholds.LARGE_UPDATE_LASTS
        return self._growing.hold(sure, lambda: self._verdict("growing", loss, first, sure))

    def _observe_thrown(self, loss: Loss) -> tuple[Verdict, ...]:
        """The first steps have made a classifier worse than one that has learnt nothing."""
        self._has_grown |= self._growing.is_open
        if self._has_grown or (self._records and loss.step - self._records[-1] < thresholds.DIVERGED_RECORDS):
            return self._thrown.end()  # it is still on its way up, or comes down from there
        if self._is_worse_than_a_guess(loss):
            return self._thrown.hold(None, lambda: self._verdict("thrown", loss, 0))
        return self._thrown.end() if loss.level < max(loss.first, self._guess) else self._thrown.stay()

    def _is_worse_than_a_guess(self, loss: Loss) -> bool:
        early = thresholds.DIVERGED_START <= loss.seen <= thresholds.DIVERGED_AT_ONCE_WITHIN
        if loss.best < thresholds.LEARNT_TO * loss.start:  # it had learnt: what comes now is another task
            return False
        return early and self._guesses and loss.level > thresholds.THROWN_TO * max(loss.first, self._guess)

    def _base(self, loss: Loss) -> float:
        # The highest of the first losses is itself a record where a run explodes at once.
        base = min(self._highest_early, 2 * loss.first)
        return max(base, self._guess) if self._guess == self._guess else base

    def _observe_lost(self, loss: Loss) -> tuple[Verdict, ...]:
        if loss.seen <= thresholds.DIVERGED_START:
            return ()
        learnt = loss.best < thresholds.LEARNT_TO * loss.start
        if not learnt or loss.low < thresholds.BACK_TO * loss.start:
            self._back_for = 0
            self._levels.clear()
            return self._lost.end()
        self._back_for += 1
        self._levels.append(loss.level)
        recovering = loss.level < thresholds.BACK_STILL * self._levels[0]
        if self._back_for < thresholds.BACK_FOR or (recovering and not self._lost.is_open):
            return ()
        # A loss of several terms also rises because one of them is given more weight.
        sure = self._guesses or self._large_step_since_best >= loss.best_step
        return self._lost.hold(sure, lambda: self._verdict("lost", loss, loss.best_step, sure))

    def _verdict(self, key: str, loss: Loss, first: int, sure: bool = True) -> Verdict:
        if key == "thrown":
            evidence = Evidence("loss", None, loss.level, loss.first, "median of the latest losses, and the first one")
            summary = (
                f"The first steps threw the model off: its loss was {loss.first:.3g} before it had learnt anything, "
                f"and is {loss.level:.3g} after {loss.seen} steps."
            )
        elif key == "growing":
            evidence = Evidence("loss", None, loss.level, loss.first, "median of the latest losses, and the first one")
            summary = f"The loss grows: {loss.first:.3g} at the start, {loss.level:.3g} at step {loss.step}."
        else:
            evidence = Evidence("loss", None, loss.level, loss.best, f"now, and at its best at step {loss.best_step}")
            summary = (
                f"What was learnt is lost: the loss had fallen to {loss.best:.3g} by step {loss.best_step} and is back "
                f"at {loss.level:.3g}, where it started."
            )
        severity, confidence = (Severity.SEVERE, 0.9) if sure else (Severity.MILD, 0.5)
        if key == "thrown":
            severity, confidence = Severity.MODERATE, 0.7
        return Verdict(key, True, severity, (), first, confidence, summary, (evidence,))
