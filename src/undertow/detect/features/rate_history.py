"""What the learning rate has done: where it began, its peak, how long it has been next to nothing, its latest leap."""

from __future__ import annotations

import math

from undertow.detect import thresholds


class RateHistory:
    """The rates of one optimizer, step by step (the largest of its groups). All comparisons are relative."""

    __slots__ = (
        "_below", "_share", "first", "leap_factor", "leap_step", "now", "peak", "peak_since", "risen", "shrinks_for",
        "steps",
    )  # fmt: skip

    def __init__(self) -> None:
        self.first = self.now = self.peak = math.nan
        self.peak_since = 0  # steps for which no rate was larger
        self.steps = 0  # with a rate above zero, up to the present
        self.risen = False  # ever clearly above the first rate: a warm-up
        self.leap_step = -1  # the latest step at which the rate left the established peak far behind
        self.leap_factor = 1.0
        self.shrinks_for = 0  # steps in a row at which it shrank to the same share of itself
        self._share = math.nan
        self._below = dict.fromkeys(thresholds.FALLEN_TO, 0)

    def add(self, rate: float, step: int) -> None:
        if not math.isfinite(rate):
            return
        share = rate / self.now if self.now > 0 else math.nan
        same = share < 1 and abs(share - self._share) < thresholds.FALLEN_SAME_SHARE * (1 - share)
        self.shrinks_for = self.shrinks_for + 1 if same else 0
        self.now, self._share = rate, share
        if not self.steps:
            if rate <= 0:
                return  # a schedule that starts at zero has not begun
            self.first = self.peak = rate
        self.steps += 1
        self.risen = self.risen or rate > 1.2 * self.first
        if rate > 1.001 * self.peak:
            if rate > thresholds.RATE_LEAP * self.peak and self.peak_since >= thresholds.RATE_ESTABLISHED:
                self.leap_step, self.leap_factor = step, rate / self.peak
            self.peak, self.peak_since = rate, 0
            self._below = dict.fromkeys(self._below, 0)
        else:
            self.peak_since += 1
        for share in self._below:
            self._below[share] = self._below[share] + 1 if rate < share * self.peak else 0

    def fallen_for(self, share: float) -> int:
        """Steps in a row with a rate below this share of the peak."""
        return self._below[share]

    @property
    def is_steady(self) -> bool:
        """It is what it was at the step before, near its peak, and never leapt."""
        return self.leap_step < 0 < self.now and self._share == 1.0 and not any(self._below.values())

    def go_on(self, steps: int) -> None:
        """`add` of the same rate for so many steps more, while it is steady."""
        self.steps += steps
        self.peak_since += steps
