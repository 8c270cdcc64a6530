"""A loss that leaps out of a calm course, and whether it comes back."""

import math
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from undertow.detect.engine import FrameBatch, FrameView, Limit
from undertow.schema import LossKind

_OF_LABELS = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)


@dataclass(slots=True)
class Spike:
    extreme: ClassVar = Limit(20.0, "times the untrained loss: neither harder data nor another task")
    sudden: ClassVar = Limit(1e4, "times the level before, in one step: too long steps take several to get there")
    learnt_peak: ClassVar = Limit(1.1, "times its first loss: highest when it began…")
    learnt_steps: ClassVar = Limit.memory(5, "losses: …and over after so many, none of which undid half of it")

    step: int
    value: float  # of the step at which it began
    before: float  # the level it left
    untrained: float  # the loss with which the run began
    peak: float  # the highest so far
    worse_than: float  # times the untrained loss from which on it does harm
    lowest: float  # since it began
    latest: float
    steepest: float = 1.0  # how many times lower the loss was from one step to the next, at most
    lasted: int = 0  # steps
    over_after: int | None = None  # steps until the loss was back where it had been; None: it is not

    @property
    def was_of_a_batch(self) -> bool:
        """So high from one step to the next that no other task explains it, and other batches are not as high; or so
        much higher that no single step out of a calm course does that."""
        extreme = self.value > self.extreme * self.untrained
        sudden = self.value > self.sudden * self.before
        return extreme and (sudden or (self.lasted >= 3 and self.lowest < self.value / 3))

    @property
    def was_learnt(self) -> bool:
        """Highest when it began, and down again little by little: other data, with which the model is made familiar.
        A bad batch is over at once, and what bad steps have done grows before it heals."""
        sudden = self.peak < self.learnt_peak * self.value
        return sudden and self.lasted >= self.learnt_steps and self.steepest**2 < self.value / self.before

    @property
    def is_harmful(self) -> bool:
        """It came back, so it was no change of task, and was worse than an untrained model; or it is extreme."""
        came_back = self.over_after is not None and self.value > self.worse_than * self.untrained
        came_back &= not self.was_learnt
        return came_back or self.peak > self.extreme * self.untrained


class SpikeWatch:
    """Follows the loss; `spike` is the latest one, until the next calm step after it."""

    leap = Limit(8.0, "deviations of the loss; healthy ones under a constant rate: 4, 7 with random depth")
    ratio = Limit(2.718, "times the level before")
    calm = Limit.sample(30, "losses before it…")
    above_recent = Limit(2.0, "times the highest of which it is")
    above_all = Limit(1.5, "times the highest of them all, where only the latest count: those before were higher")
    calm_below = Limit(3.0, "times the untrained loss: a run that has been above it is sick for another reason")
    lasts = Limit.memory(15, "steps in which it must come back: a harder task takes longer")
    back = Limit(1.5, "times the level before…")
    back_for = Limit(3, "…at so many losses in a row")
    above_start = Limit(1.2, "times the untrained loss, for a cross-entropy: worse than chance level")
    above_start_else = Limit(3.0, "times it, for losses without a natural size, such as those of moving targets")
    steady_targets = Limit(2.0, "largest over least deviation of a batch of targets: a mean square is as natural")
    after_rise = Limit.memory(40, "steps after a rise of the learning rate, which explains a spike")

    def __init__(self, latest: int = 0) -> None:
        """`latest`: of the losses before it, how many it must be twice as high as; all of them without it."""
        self._latest = latest
        self.spike: Spike | None = None
        self._following = False
        self._back = 0  # losses in a row that are back where they were
        self._recent: deque[float] = deque(maxlen=int(self.calm))
        self._highest = 0.0  # of all losses but spikes
        self.is_natural = False  # a cross-entropy has a natural size: that of a guess; so has the error of targets that
        self._targets = (math.inf, 0.0)  # …keep their size: least and largest deviation of a batch of them
        self._rate = math.nan
        self._rate_rose = -(10**9)

    def observe(self, view: FrameView) -> None:
        loss = view.loss
        if loss is None or not loss.positive or loss.actors > 1:
            return
        kind = view.frame.scalars.get("loss_kind")
        if kind is not None:
            size = view.scalar("target_std")
            if kind == LossKind.MEAN_SQUARE and size > 0:
                self._targets = (min(size, self._targets[0]), max(size, self._targets[1]))
            steady = 0 < self._targets[1] < self.steady_targets * self._targets[0]
            self.is_natural = kind in _OF_LABELS or (kind == LossKind.MEAN_SQUARE and steady)
        rate = view.frame.scalars.get("lr", self._rate)
        if rate > 2 * self._rate:
            self._rate_rose = view.step
        self._rate = rate
        if self._following:
            self._follow(view.step, loss.value)
        else:
            is_spike = (
                loss.jump > self.leap
                and loss.ratio > self.ratio
                and len(self._recent) == self.calm
                and loss.value > self.above_recent * max(list(self._recent)[-self._latest :])
                and loss.value > self.above_all * max(self._recent)
                and view.step - self._rate_rose > self.after_rise
                and self._highest < self.calm_below * max(loss.first, loss.start)
            )
            self.spike = None
            if is_spike:
                untrained = max(loss.first, loss.start)
                worse = self.above_start if self.is_natural else self.above_start_else
                self.spike = Spike(
                    view.step, loss.value, loss.value / loss.ratio, untrained, loss.value, worse, loss.value,
                    loss.value,
                )  # fmt: skip
            self._following, self._back = is_spike, 0
        self._recent.append(loss.value)
        if self.spike is None:
            self._highest = max(self._highest, loss.value)

    @property
    def resting(self) -> bool:
        return self.spike is None and not self._following

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> None:
        losses = [loss.value for loss in batch.losses[first:last] if loss is not None]
        self._recent.extend(losses)
        self._highest = max([self._highest, *losses])
        self._back = 0

    def _follow(self, step: int, value: float) -> None:
        spike = self.spike
        assert spike is not None
        spike.peak, spike.lowest, spike.lasted = max(spike.peak, value), min(spike.lowest, value), step - spike.step
        spike.steepest, spike.latest = max(spike.steepest, spike.latest / value), value
        self._back = self._back + 1 if value < self.back * spike.before else 0
        if self._back >= self.back_for:
            spike.over_after = step - spike.step - self._back + 1
            self._following = False
        elif step - spike.step > self.lasts:
            self._following = False
