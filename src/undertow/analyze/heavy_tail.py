"""How heavy the tail of a spectrum is: the power law that its largest squares follow.

Density ∝ x^−α above a start; α by maximum likelihood for every start, and the start whose law is nearest to the data in
the sense of Kolmogorov and Smirnov (Clauset, Shalizi and Newman 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEWEST_FOR_TAIL = 50
NEGLIGIBLE = 1e-12  # of the largest square: rounding
_STRIDE = 16


@dataclass(frozen=True, slots=True)
class Tail:
    exponent: float
    values: int
    start: float
    distance: float


def heavy_tail(squares: Floats, counts: Floats) -> Tail | None:
    """Of squares that fall; one that stands for several (`counts`) is taken as the middle one of them.

    None for fewer than fifty, or when all are equal.
    """
    real = squares > squares[0] * NEGLIGIBLE
    values, counts = squares[real][::-1], counts[real][::-1]
    if counts.sum() < FEWEST_FOR_TAIL or values[0] == values[-1]:
        return None
    logs = np.log(values)
    remaining = np.cumsum(counts[::-1])[::-1]
    excess = np.cumsum((counts * logs)[::-1])[::-1] - remaining * logs
    below = np.cumsum(counts) - counts  # squares under each one
    middle = below + (counts - 1.0) / 2.0
    starts = np.flatnonzero(excess[:-1] > 0)
    if not len(starts):
        return None
    slope = remaining[starts] / excess[starts]  # α − 1

    def distances(rows: slice, places: NDArray[np.intp]) -> Floats:
        """How far law and data are apart at these places, for these starts; 0 where a place is below the start."""
        first = starts[rows, None]
        law = 1.0 - np.exp(-slope[rows, None] * np.maximum(logs[places] - logs[first], 0.0))
        data = (middle[places] - below[first]) / remaining[first]
        return np.where(places >= first, np.abs(law - data), 0.0)

    # The distance at every sixteenth place is a lower bound: most starts need no more than that to be ruled out.
    some = np.append(np.arange(0, len(values), _STRIDE), len(values) - 1)
    least = distances(slice(None), some).max(axis=1)
    best, distance = -1, np.inf
    for place in np.argsort(least, kind="stable").tolist():
        if least[place] > distance:
            break
        far = float(distances(slice(place, place + 1), np.arange(int(starts[place]), len(values))).max())
        if far < distance or (far == distance and place < best):
            best, distance = place, far
    start = int(starts[best])
    return Tail(1.0 + float(slope[best]), round(float(remaining[start])), float(values[start]), distance)
