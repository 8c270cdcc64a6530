"""Labels of a batch: how varied they are, and whether neighbours resemble each other more than they should."""

import numpy as np
from numpy.typing import NDArray

MAX_CLASSES = 1 << 20

Labels = NDArray[np.int64]


class LabelBook:
    """Counts of all labels seen so far, apart for each number of classes."""

    def __init__(self) -> None:
        self._pooled: dict[int, Labels] = {}

    def numbers(self, labels: Labels, classes: int, ignored: int | None = None) -> list[dict[str, float]]:
        """Of several batches (batches × labels), in their order. Labels equal to `ignored` are padding; others outside
        of the classes are none."""
        if classes > MAX_CLASSES:
            return [{} for _ in labels]
        valid = (labels >= 0) & (labels < classes)
        if ignored is not None:
            valid &= labels != ignored
        number = len(labels)
        place = labels + classes * np.arange(number)[:, None]
        counts = np.bincount(place[valid], minlength=number * classes).reshape(number, classes)
        pooled = counts.cumsum(axis=0) + self._pooled.get(classes, 0)
        self._pooled[classes] = pooled[-1]
        neighbours = valid[:, :-1] & valid[:, 1:]
        pairs = neighbours.sum(axis=1)
        same = (neighbours & (labels[:, :-1] == labels[:, 1:])).sum(axis=1) / pairs
        repeat = same - np.square(pooled / pooled.sum(axis=1)[:, None]).sum(axis=1)
        entropies, entropies_pooled = _entropy(counts).tolist(), _entropy(pooled).tolist()
        found: list[dict[str, float]] = [{} for _ in labels]
        for place in np.flatnonzero(valid.any(axis=1)).tolist():
            found[place] = {"label_entropy": entropies[place], "label_entropy_pooled": entropies_pooled[place]}
            if pairs[place]:
                found[place]["label_repeat"] = float(repeat[place])
        return found


def _entropy(counts: Labels) -> NDArray[np.float64]:
    """In nats, of each row."""
    shares = counts / counts.sum(axis=1)[:, None]
    return np.maximum(0.0, -(shares * np.log(np.where(counts > 0, shares, 1.0))).sum(axis=1))
