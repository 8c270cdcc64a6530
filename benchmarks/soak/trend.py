"""Whether a row of samples is flat: the slope after warm-up, with its noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WARM_UP = 1 / 3  # of the time: caches fill, allocators take what they need
_BLOCKS = 12
_SURE = 3.17  # standard errors: 99 % of Student's t with ten degrees of freedom


@dataclass(frozen=True, slots=True)
class Trend:
    level: float  # after warm-up
    growth: float  # from the end of the warm-up to the end
    noise: float  # the growth is known this well, at 99 %
    hours: float  # in which it grew

    @property
    def per_hour(self) -> float:
        return self.growth / self.hours

    def verdict(self, allowed: float) -> str:
        """Flat is more than a small slope: a larger one must be ruled out."""
        if self.growth + self.noise <= allowed:
            return "flat"
        return "GROWS" if self.growth - self.noise > 0 else "too noisy to tell"


def trend(seconds: Sequence[float], values: Sequence[float], *, floor: bool = False) -> Trend:
    """Samples that follow each other are alike, so each of twelve stretches of time counts as one observation: its
    mean, or its `floor` for what comes and goes with the work and only what is never given back counts."""
    times, samples = np.asarray(seconds, float), np.asarray(values, float)
    kept = times >= times[0] + WARM_UP * (times[-1] - times[0])
    times, samples = times[kept], samples[kept]
    blocks = np.array_split(np.arange(len(times)), _BLOCKS)
    x = np.array([times[block].mean() for block in blocks])
    y = np.array([samples[block].min() if floor else samples[block].mean() for block in blocks])
    away = x - x.mean()
    slope = float(away @ y / (away @ away))
    left = y - y.mean() - slope * away
    error = float(np.sqrt(left @ left / (_BLOCKS - 2) / (away @ away)))
    span = float(times[-1] - times[0])
    return Trend(float(y.mean()), slope * span, _SURE * error * span, span / 3600)
