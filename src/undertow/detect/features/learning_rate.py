"""The learning rate of every optimizer beside the size of its updates and the loss: what all of OPT007 goes by."""

import math
from collections import deque
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Flags, FrameBatch, FrameView, Limit, Tracker, Wake
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.long_first_steps import LongFirstSteps
from undertow.detect.features.loss_trend import Loss, actor_of
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.parameter_groups import FastMembers
from undertow.detect.features.rate_history import RateHistory

_UPDATES, _SETTINGS = frozenset({"update"}), frozenset({"optimizer", "initial_lr"})
_TREND_SEEN = 24  # losses: with fewer, no trend is certain


def _may_matter(batch: FrameBatch) -> Flags:
    """All but steps at the same rate as before with a loss that has come down."""
    rates = batch.scalar("lr")
    quiet = batch.with_any(_UPDATES) & ~batch.with_any(_SETTINGS) & ~batch.skipped
    quiet &= rates == np.concatenate(([math.nan], rates[:-1]))
    return ~(quiet & [_has_come_down(loss) for loss in batch.losses])


def _has_come_down(loss: Loss | None) -> bool:
    if loss is None or not loss.positive or loss.actors > 1:
        return False
    return loss.seen > _TREND_SEEN and loss.value < 0.5 * loss.first


class LearningRate(Tracker):
    """Follows rates, updates and losses. What the loss of a step shows was caused by updates before it: those of the
    step itself count as `large` from the next one on.
    """

    needs = frozenset({"lr"})
    wakes_on = Wake(_may_matter)
    is_of_one_training = True
    order = ("learning-rate-jump", "learning-rate-too-high")

    large_update: ClassVar = Limit(0.2, "of the weight, median over matrices; healthy ones stay below 0.15")
    small_update: ClassVar = Limit(2e-4, "of the weight; half of healthy matrices move thirty times as fast")
    lasts: ClassVar = Limit.memory(20, "steps for which a large update may explain a loss")
    early: ClassVar = Limit.start(5, "losses: a first loss is at chance level only at the start")
    implausible_start: ClassVar = Limit(3.0, "first loss over chance level: inputs or initial weights are to blame")
    above_first: ClassVar = Limit(1.03, "times the first loss: enough at the start where updates are large")
    still_up: ClassVar = Limit(0.2, "share of the peak, above which the schedule has not taken the rate away yet")
    never_above: ClassVar = Limit(0.02, "of the rate the optimizer was made with; warm-ups begin there and rise")

    def __init__(self) -> None:
        self.rates: dict[int, RateHistory] = {}
        self.history = RateHistory()  # of the optimizer that steps in this frame
        self.actor = 0
        self.fast, self.long_start = FastMembers(), LongFirstSteps()
        self.begun = self.loss_begun = -1  # the first steps, of all and with a loss
        self.seen, self.is_positive = 0, False
        self.level_before_jump = math.nan
        self.has_implausible_start = False
        self.above = 0  # losses in a row that were a little above the first
        self.made_with = math.nan  # the rate before a schedule took over
        self.fell_while_falling = False  # the loss was falling while the rate was still up
        self.large: deque[tuple[int, float]] = deque(maxlen=8)  # steps whose update was large, and its size
        self.was_large_early = False  # one of the first updates
        self.looked = -(10**9)  # the latest step before this whose updates were measured
        self.largest = 0.0  # update over weight, of any matrix at any step
        self._held: dict[int, NDArray[np.int32]] = {}  # the layers of each optimizer
        self.stepped: dict[int, tuple[int, ...]] = {}  # the matrices that each of two optimizers moves
        self._looked_now: int | None = None
        self._large_now: tuple[int, float] | None = None

    @property
    def is_calm(self) -> bool:
        """The rate has been the same for long, and the model bears it."""
        if len(self.rates) != 1 or not self.largest > self.small_update or self.loss_begun < 0:
            return False
        is_up = self.history.now > self.still_up * self.history.peak and not self.is_far_below_its_setting
        return self.history.is_steady and is_up and not (
            self.has_large_early or self.has_implausible_start or self.fast.parameters
        )  # fmt: skip

    @property
    def has_large_early(self) -> bool:
        return self.was_large_early or (self._large_now is not None and self.seen <= self.lasts)

    @property
    def is_far_below_its_setting(self) -> bool:
        """The schedule never gave more than a fraction of the optimizer's rate; one of 1 is there to be set by it."""
        return self.made_with < 1 and self.history.peak < self.never_above * self.made_with

    def follow(self, view: FrameView) -> None:
        self._settle_updates()
        self.actor = actor_of(view.frame)
        if self._lets_layers_go(view):
            self.rates[self.actor] = RateHistory()
        self.history = self.rates.setdefault(self.actor, RateHistory())
        rate, loss = view.scalar("lr"), view.loss
        self.history.add(rate, view.step)
        self.long_start.begin(view.step)
        if "optimizer" in view.frame.blocks:
            self.fast.observe(view)
            self.long_start.observe(view)
        self.begun = view.step if self.begun < 0 else self.begun
        if self.history.jump_step == view.step:
            self.level_before_jump = loss.level if loss is not None else math.nan
        if loss is not None:
            self._follow_loss(view, loss)
        if not view.skipped and rate > 0 and view.row("update_ratio") is not None:
            self._follow_updates(view)

    def _lets_layers_go(self, view: FrameView) -> bool:
        """Whether the optimizer no longer holds a layer that it held: it is another one, in the place of the first."""
        ids, holders = view.ids("gradient"), view.row("gradient_optimizer")
        if ids is None or holders is None:
            return False
        held, before = ids[holders >= 0], self._held.get(self.actor)
        if not len(held) or (before is not None and np.array_equal(held, before)):
            return False
        self._held[self.actor] = held
        return before is not None and not bool(np.isin(before, held).all())

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        places = first + np.flatnonzero(~np.isnan(batch.scalar("lr")[first:last]))
        self.history.go_on(len(places) - 1)
        self.follow(batch.view(int(places[-1])))

    def _follow_loss(self, view: FrameView, loss: Loss) -> None:
        self.is_positive, self.seen = loss.positive, loss.seen
        if loss.seen <= self.early:
            self.has_implausible_start |= loss.first > self.implausible_start * chance_level(view)
        if loss.positive and loss.actors == 1 and not self.has_implausible_start:
            self.above = self.above + 1 if loss.value > self.above_first * loss.first else 0
        if loss.actors == 2:
            if self.actor not in self.stepped and view.row("update_norm") is not None:
                matrices = matrices_of(view.layout)
                self.stepped[self.actor] = tuple(matrices.ids[matrices.values(view, "update_norm") > 0].tolist())
            return
        self.loss_begun = view.step if self.loss_begun < 0 else self.loss_begun
        self.made_with = view.frame.scalars.get("initial_lr", self.made_with)
        # The last time it is said is when the rate went; where that was early, when a trend can first be seen.
        is_early = loss.seen <= _TREND_SEEN
        if is_early or self.history.now > self.still_up * self.history.peak:
            self.fell_while_falling = loss.falling or (is_early and self.fell_while_falling)

    def _follow_updates(self, view: FrameView) -> None:
        loss, self._looked_now = view.loss, view.step
        if self.largest > self.small_update and loss is not None and loss.value < 0.5 * loss.first:
            return  # a model that has learnt this much bears its rate
        ratios = matrices_of(view.layout).update_ratios(view)
        size = middle(ratios)
        if math.isnan(size):
            return
        self.largest = max(self.largest, float(np.fmax.reduce(ratios)))
        if size > self.large_update:
            self._large_now = view.step, size

    def _settle_updates(self) -> None:
        if self._looked_now is not None:
            self.looked, self._looked_now = self._looked_now, None
        if self._large_now is not None:
            self.large.append(self._large_now)
            self.was_large_early |= self.seen <= self.lasts
            self._large_now = None

    def moved_layers(self) -> tuple[int, ...]:
        """What the optimizer moves whose rate it was, where there are two; else the group that is far ahead, if any."""
        return self.stepped.get(self.actor, ()) if len(self.stepped) == 2 else self.fast.members
