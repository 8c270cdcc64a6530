"""Labels of a batch: how varied they are, and whether neighbours resemble each other more than they should."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_CLASSES = 1 << 20


class LabelBook:
    """Counts of all labels seen so far, apart for each number of classes."""

    def __init__(self) -> None:
        self._pooled: dict[int, NDArray[np.int64]] = {}

    def numbers(self, labels: NDArray[np.int64], classes: int, ignored: int | None = None) -> dict[str, float]:
        """Labels equal to `ignored` are padding; others outside of the classes are none."""
        valid = (labels >= 0) & (labels < classes)
        if ignored is not None:
            valid &= labels != ignored
        if not valid.any() or classes > MAX_CLASSES:
            return {}
        counts = np.bincount(labels[valid], minlength=classes)
        pooled = self._pooled.get(classes)
        pooled = self._pooled[classes] = counts if pooled is None else pooled + counts
        found = {"label_entropy": _entropy(counts), "label_entropy_pooled": _entropy(pooled)}
        neighbours = valid[:-1] & valid[1:]
        if neighbours.any():
            same = (labels[:-1] == labels[1:])[neighbours].mean()
            found["label_repeat"] = float(same - np.square(pooled / pooled.sum()).sum())
        return found


def _entropy(counts: NDArray[np.int64]) -> float:
    """In nats."""
    shares = counts[counts > 0] / counts.sum()
    return max(0.0, float(-(shares * np.log(shares)).sum()))
