"""Whether the numbers had run away before one of them stopped being finite."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.schema import Evidence, Finding

_ORDERS = 1e3  # how much more than at the start is no longer training
_HUGE_WEIGHT = 1e6  # no weight of a model that works is as large, whatever it was at the start
_LAST = 3  # a loss may dip once on its way up

Numbers = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class ValueHistory:
    """What a run looked like from far away: one number per step, NaN where there is none."""

    steps: NDArray[np.int64]
    loss: Numbers
    largest_weight: Numbers


def divergence(finding: Finding, history: ValueHistory) -> Evidence | None:
    """The growth that came before a non-finite value, or None if there was none."""
    if finding.code not in ("NUM001", "NUM002", "NUM003") or not finding.severity.is_alarm:
        return None
    grown = _extremes(history.steps, history.loss, finding.first_step)
    if grown is not None and grown[1][1] >= _ORDERS * grown[0][1] > 0:
        return _evidence("loss", "the loss", *grown)
    grown = _extremes(history.steps, history.largest_weight, finding.first_step)
    if grown is not None and grown[1][1] >= min(_ORDERS * grown[0][1], _HUGE_WEIGHT):
        return _evidence("weight_max_abs", "the largest weight", *grown)
    return None


def _extremes(steps: NDArray[np.int64], values: Numbers, until: int) -> tuple[tuple[int, float], ...] | None:
    """Step and size of the first finite value, and of the largest of the last ones, up to a step."""
    places = np.flatnonzero(np.isfinite(values) & (steps <= until))
    if not len(places):
        return None
    late = places[-_LAST:]
    peak = late[np.argmax(np.abs(values[late]))]
    return tuple((int(steps[place]), abs(float(values[place]))) for place in (places[0], peak))


def _evidence(quantity: str, noun: str, first: tuple[int, float], last: tuple[int, float]) -> Evidence:
    (start, before), (end, after) = first, last
    how = f"{noun} was already {after:.3g} at step {end}"
    if end > start:
        how = f"{noun} had grown from {before:.3g} at step {start} to {after:.3g} at step {end}"
    return Evidence(quantity, None, after, before if end > start else None, f"{how}: the training had diverged")
