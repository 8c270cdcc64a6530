"""What a record does not hold, so that silence about it means nothing."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

_GAP = 20  # times the usual distance of two recorded steps


def blind_spots(steps: NDArray[np.int64], quantities: Collection[str], scalars: Collection[str]) -> tuple[str, ...]:
    """In words, the gravest first, from the names of what was recorded."""
    if not len(steps):
        return ()
    found: list[str] = []
    if "gradient_norm" not in quantities:
        found.append("no gradient was measured, so only the numbers per step could be judged")
    if "loss" not in scalars:
        found.append("no loss was seen, so nothing can be said about whether the model learns")
    gap = _largest_gap(steps)
    if gap is not None:
        found.append(f"no step between {gap[0]:,} and {gap[1]:,} is in the record")
    return tuple(found)


def _largest_gap(steps: NDArray[np.int64]) -> tuple[int, int] | None:
    """The ends of a stretch that is missing; steps that are skipped regularly are none."""
    distances = np.diff(steps)
    if len(distances) < 2:
        return None
    place = int(np.argmax(distances))
    usual = max(1.0, float(np.median(distances)))
    return (int(steps[place]), int(steps[place + 1])) if distances[place] > _GAP * usual else None
