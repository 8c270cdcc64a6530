"""A loss that leaps out of a calm course, and whether it comes back."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from undertow.detect import thresholds
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.schema.quantities import LossKind

_OF_THE_LOSS = frozenset({"loss_kind"})
_OF_LABELS = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)


@dataclass(slots=True)
class Spike:
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
        extreme = self.value > thresholds.SPIKE_EXTREME * self.untrained
        sudden = self.value > thresholds.SPIKE_SUDDEN * self.before
        return extreme and (sudden or (self.lasted >= 3 and self.lowest < self.value / 3))

    @property
    def was_learnt(self) -> bool:
        """Highest when it began, and down again little by little: other data, with which the model is made familiar.
        A bad batch is over at once, and what bad steps have done grows before it heals."""
        sudden = self.peak < thresholds.SPIKE_LEARNT_PEAK * self.value
        return sudden and self.lasted >= thresholds.SPIKE_LEARNT_STEPS and self.steepest**2 < self.value / self.before

    @property
    def is_harmful(self) -> bool:
        """It came back, so it was no change of task, and was worse than an untrained model; or it is extreme."""
        came_back = self.over_after is not None and self.value > self.worse_than * self.untrained
        came_back &= not self.was_learnt
        return came_back or self.peak > thresholds.SPIKE_EXTREME * self.untrained


class SpikeWatch:
    """Follows the loss; `spike` is the latest one, until the next calm step after it."""

    def __init__(self) -> None:
        self.spike: Spike | None = None
        self._following = False
        self._back = 0  # losses in a row that are back where they were
        self._recent: deque[float] = deque(maxlen=thresholds.SPIKE_CALM)
        self._highest = 0.0  # of all losses but spikes
        self._natural = False  # a cross-entropy has a natural size: that of a guess; so has the error of targets that
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
            steady = 0 < self._targets[1] < thresholds.SPIKE_STEADY_TARGETS * self._targets[0]
            self._natural = kind in _OF_LABELS or (kind == LossKind.MEAN_SQUARE and steady)
        rate = view.frame.scalars.get("lr", self._rate)
        if rate > 2 * self._rate:
            self._rate_rose = view.step
        self._rate = rate
        if self._following:
            self._follow(view.step, loss.value)
        else:
            is_spike = (
                loss.jump > thresholds.SPIKE_DEVIATIONS
                and loss.ratio > thresholds.SPIKE_RATIO
                and len(self._recent) == thresholds.SPIKE_CALM
                and loss.value > thresholds.SPIKE_ABOVE_RECENT * max(self._recent)
                and view.step - self._rate_rose > thresholds.SPIKE_AFTER_RISE
                and self._highest < thresholds.SPIKE_CALM_BELOW * max(loss.first, loss.start)
            )
            self.spike = None
            if is_spike:
                untrained = max(loss.first, loss.start)
                worse = thresholds.SPIKE_ABOVE_START if self._natural else thresholds.SPIKE_ABOVE_START_ELSE
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

    def news(self, batch: FrameBatch) -> Flags:
        """Losses that may be spikes, and whatever else is more than one more loss."""
        usual = (batch.loss("jump") <= thresholds.SPIKE_DEVIATIONS) & (batch.loss("actors") == 1)
        usual &= (batch.loss("positive") == 1) & np.logical_and.accumulate(batch.scalar("lr") == self._rate)
        return ~usual | batch.with_any(_OF_THE_LOSS)

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
        self._back = self._back + 1 if value < thresholds.SPIKE_BACK * spike.before else 0
        if self._back >= thresholds.SPIKE_BACK_FOR:
            spike.over_after = step - spike.step - self._back + 1
            self._following = False
        elif step - spike.step > thresholds.SPIKE_LASTS:
            self._following = False
