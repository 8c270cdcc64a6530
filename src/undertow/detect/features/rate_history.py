"""What the learning rate has done: where it began, its peak, how long it has been next to nothing, its latest jump."""

import math

from undertow.detect.engine import Limit

# Share of the peak, and for how many steps at least the rate must be below it: so many, and as a part of the steps
# above it. A cosine is below a thousandth of its peak for 2 % of its length, and below a hundredth for 6 %; a cubic
# decay for 10 and 21 %.
FALLEN_TO = {1e-3: (5, 0.15), 1e-2: (3, 0.3)}


class RateHistory:
    """The rates of one optimizer, step by step (the largest of its groups). All comparisons are relative."""

    __slots__ = (
        "_below", "_share", "first", "jump_factor", "jump_step", "now", "peak", "peak_since", "risen", "shrinks_for",
        "steps",
    )  # fmt: skip

    jump = Limit(5.0, "times the established peak; warm-ups rise in small steps")
    established = Limit.plan(10, "steps without a larger rate: a warm-up raises it at every one")
    same_share = Limit(1e-3, "of what it loses in a step: cosines and lines lose another share every time")

    def __init__(self) -> None:
        self.first = self.now = self.peak = math.nan
        self.peak_since = 0  # steps for which no rate was larger
        self.steps = 0  # with a rate above zero, up to the present
        self.risen = False  # ever clearly above the first rate: a warm-up
        self.jump_step = -1  # the latest step at which the rate left the established peak far behind
        self.jump_factor = 1.0
        self.shrinks_for = 0  # steps in a row at which it shrank to the same share of itself
        self._share = math.nan
        self._below = dict.fromkeys(FALLEN_TO, 0)

    def add(self, rate: float, step: int) -> None:
        if not math.isfinite(rate):
            return
        share = rate / self.now if self.now > 0 else math.nan
        same = share < 1 and abs(share - self._share) < self.same_share * (1 - share)
        self.shrinks_for = self.shrinks_for + 1 if same else 0
        self.now, self._share = rate, share
        if not self.steps:
            if rate <= 0:
                return  # a schedule that starts at zero has not begun
            self.first = self.peak = rate
        self.steps += 1
        self.risen = self.risen or rate > 1.2 * self.first
        if rate > 1.001 * self.peak:
            if rate > self.jump * self.peak and self.peak_since >= self.established:
                self.jump_step, self.jump_factor = step, rate / self.peak
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
        """It is what it was at the step before, near its peak, and never jumped."""
        return self.jump_step < 0 < self.now and self._share == 1.0 and not any(self._below.values())

    def go_on(self, steps: int) -> None:
        """`add` of the same rate for so many steps more, while it is steady."""
        self.steps += steps
        self.peak_since += steps
