"""How heavy the tail of a spectrum is: the power law that its largest squares follow.

Density ∝ x^−α above a start; α by maximum likelihood for every start, and the start whose law is nearest to the data in
the sense of Kolmogorov and Smirnov (Clauset, Shalizi and Newman 2009).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.intp]

FEWEST_FOR_TAIL = 50
NEGLIGIBLE = 1e-12  # of the largest square: rounding
_STRIDE = 16
# The few best ones by that bound settle most others; what they leave is looked at together.
_FIRST = 8
_AT_ONCE = 64


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

    def distances(rows: Places, places: Places) -> Floats:
        """How far law and data are apart at most, at these places, for these starts."""
        first = starts[rows, None]
        apart = np.exp(slope[rows, None] * np.minimum(logs[first] - logs[places], 0.0))
        apart += (middle[places] - below[first]) / remaining[first] - 1.0
        apart[places < first] = 0.0
        return np.abs(apart, out=apart).max(axis=1)

    # The distance at every sixteenth place is a lower bound: most starts need no more than that to be ruled out.
    everywhere = np.arange(len(values))
    least = distances(np.arange(len(starts)), np.append(everywhere[::_STRIDE], len(values) - 1))
    order = np.argsort(least, kind="stable")
    best, distance, turn, size = -1, np.inf, 0, _FIRST
    while turn < len(order):
        rows = order[turn : turn + size]
        turn, size = turn + size, _AT_ONCE
        rows = rows[least[rows] <= distance]
        if not len(rows):
            break
        far = distances(rows, everywhere[int(starts[rows].min()) :])
        near = float(far.min())
        place = int(rows[far == near].min())
        if near < distance or (near == distance and place < best):
            best, distance = place, near
    start = int(starts[best])
    return Tail(1.0 + float(slope[best]), round(float(remaining[start])), float(values[start]), distance)
