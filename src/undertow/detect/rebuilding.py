"""How often the optimizer of the same parameters is made anew, and at which intervals."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds
from undertow.detect.engine.view import FrameView


class Rebuilding:
    """Times at which another optimizer object, with the rate of the one before, took over the same parameters."""

    def __init__(self) -> None:
        self.steps: deque[int] = deque(maxlen=thresholds.REBUILT_TIMES)
        self._rate = math.nan

    def observe(self, view: FrameView) -> None:
        rate, before = view.frame.scalars.get("lr", math.nan), self._rate
        self._rate = rate if rate > 0 else before
        if view.frame.scalars.get("optimizer_made_anew") != 1:
            return
        if abs(rate / before - 1) > thresholds.REBUILT_SAME_RATE:
            self.steps.clear()  # another phase of the training, with a rate of its own
            return
        self.steps.append(view.step)

    def take_rates(self, rates: NDArray[np.float64]) -> None:
        """Of frames at which nothing was made anew."""
        known = rates[rates > 0]
        self._rate = float(known[-1]) if len(known) else self._rate

    @property
    def is_regular(self) -> bool:
        """As often as counts, at even intervals: a loop does it, not a plan."""
        if len(self.steps) < thresholds.REBUILT_TIMES:
            return False
        gaps = [later - earlier for earlier, later in zip(self.steps, list(self.steps)[1:])]
        times = [gap / min(gaps) for gap in gaps]  # now and then one is not seen
        return all(abs(ratio / round(ratio) - 1) <= thresholds.REBUILT_UNEVEN for ratio in times)

    @property
    def interval(self) -> float:
        return (self.steps[-1] - self.steps[0]) / (len(self.steps) - 1)
