"""Loss and rate while a finding held: what a training tolerates while it learns is not what breaks it later."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_WINDOW = 9  # losses whose median is the level
_ENOUGH = 30  # losses: fewer show no trend
_FALLEN = 0.7  # of the level at which it began: the training learns all the same
_NEAR_BEST = 1.25  # times the lowest level: it learns still
_HARMED = 1.5  # times the level before, at the end: it has cost what was learnt


@dataclass(frozen=True, slots=True)
class LossHistory:
    """The finite losses of a run, with their steps and the learning rates there."""

    steps: NDArray[np.int64]
    losses: NDArray[np.float64]
    rates: NDArray[np.float64] | None = None

    @classmethod
    def of(
        cls, steps: NDArray[np.int64], losses: NDArray[np.float64], rates: NDArray[np.float64] | None = None
    ) -> "LossHistory":
        known = np.isfinite(losses)
        return cls(steps[known], losses[known], None if rates is None else rates[known])

    def rate_at(self, step: int) -> float | None:
        """The last one up to this step that is known and not zero."""
        if self.rates is None:
            return None
        rates = self.rates[: np.searchsorted(self.steps, step, "right")]
        known = rates[np.isfinite(rates) & (rates > 0)]
        return float(known[-1]) if len(known) else None

    def was_learning(self, since: int, until: int) -> bool:
        """Whether the loss fell well between two steps, and was near its lowest when the second one came."""
        losses = self.losses[np.searchsorted(self.steps, since) : np.searchsorted(self.steps, until)]
        if len(losses) < _ENOUGH or not (losses > 0).all():
            return False
        levels = np.median(losses[len(losses) % _WINDOW :].reshape(-1, _WINDOW), axis=1)
        return bool(levels[-1] < _FALLEN * np.median(losses[:_WINDOW]) and levels[-1] < _NEAR_BEST * levels.min())

    def was_harmed(self, step: int) -> bool:
        """Whether a training that learned until this step ended with far more loss than it had then."""
        if not self.was_learning(int(self.steps[0]) if len(self.steps) else 0, step):
            return False
        place = np.searchsorted(self.steps, step)
        return bool(np.median(self.losses[-_WINDOW:]) > _HARMED * np.median(self.losses[place - _WINDOW : place]))
