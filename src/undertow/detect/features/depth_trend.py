"""How gradients change with depth: what makes them vanish or explode."""

from typing import NamedTuple

import numpy as np

from undertow.detect.engine import Limit
from undertow.detect.features.matrices import Values

LEAST_MATRICES = Limit(4, "weight matrices; fewer make no line")
STEEP = Limit(3.0, "decades from end to end; healthy trainings: within 1.3")
LEAST_FIT = Limit(0.6, "of the variance that a straight line through the logarithms explains")


class DepthTrend(NamedTuple):
    """A straight line through logarithms of gradient sizes from the first matrix to the last."""

    rise: float  # decades from the first to the last matrix: positive when gradients fade towards the input
    fit: float  # share of the variance that the line explains
    size: int  # matrices in it


def depth_trend(logarithms: Values) -> DepthTrend:
    """Matrices without a finite logarithm are left out."""
    known = np.isfinite(logarithms)
    y = logarithms[known]
    count = len(y)
    if count < 3:
        return DepthTrend(0.0, 0.0, count)
    x = np.flatnonzero(known).astype(np.float64)
    x -= x.mean()
    away = y - y.mean()
    slope = float(x @ away) / float(x @ x)
    variance = float(away @ away)
    fit = slope * slope * float(x @ x) / variance if variance > 0 else 0.0
    return DepthTrend(slope * float(x[-1] - x[0]), fit, count)


def logarithms(sizes: Values) -> Values:
    return np.log10(sizes)
