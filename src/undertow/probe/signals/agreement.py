"""Do answers fit their own targets better than those of other samples? A test by exchange, in the background thread.

Let every answer be judged by the target of every sample of the batch. Where targets have nothing to do with inputs,
one's own is no better than another's: the difference, in deviations of what an exchange at random would give, is
normal around 0, whatever the loss, its scale, the frequency of the classes and what is usual at a place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FEWEST = 8  # samples
_FEWEST_OTHERS = 3  # samples whose target is not the most common one: with fewer, next to nothing is exchanged
_MOST = 48
_MOST_ALONG = 64  # places, or columns, of a sample
_MOST_JUDGED = 1 << 15

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


def agreement_of_classes(logs: Floats, labels: Labels, places: int, ignored: int | None = None) -> float | None:
    """Of log-probabilities (rows × classes) and labels (rows): a sample is so many rows, its places."""
    classes, samples = logs.shape[1], len(logs) // places
    if (labels < 0).any() or (labels >= classes).any() or (ignored is not None and (labels == ignored).any()):
        return None  # padding: samples of different lengths cannot be exchanged
    along = _spread(places, _MOST_ALONG)
    some = _spread(samples, min(_MOST, int((_MOST_JUDGED / len(along)) ** 0.5)))
    rows = some[:, None] * places + along
    if _are_nearly_alike(labels[rows]):
        return None
    judged = np.zeros((len(some), len(some)))
    for place in range(len(along)):
        judged += logs[rows[:, place]][:, labels[rows[:, place]]]
    return _own_before_others(judged)


def agreement_of_numbers(prediction: Floats, target: Floats) -> float | None:
    """Of values in the same shape, samples first."""
    if prediction.shape != target.shape or not prediction.size:
        return None
    prediction, target = (one.reshape(len(one), -1) for one in (prediction, target))
    along, some = _spread(prediction.shape[1], _MOST_ALONG), _spread(len(prediction), _MOST)
    prediction, target = prediction[some][:, along], target[some][:, along]
    if _are_nearly_alike(target):
        return None
    judged = np.zeros((len(some), len(some)))
    for column in range(len(along)):
        judged += np.multiply.outer(prediction[:, column], target[:, column])
    return _own_before_others(judged)


def _are_nearly_alike(targets: Floats | Labels) -> bool:
    counts = np.unique(targets, axis=0, return_counts=True)[1]
    return len(targets) - int(counts.max()) < _FEWEST_OTHERS


def _own_before_others(judged: Floats) -> float | None:
    """None where answers, or targets, are all alike."""
    count = len(judged)
    if count < _FEWEST or not np.isfinite(judged).all():
        return None
    centred = judged - judged.mean(axis=0) - judged.mean(axis=1)[:, None] + judged.mean()
    deviation = float(np.sqrt(np.square(centred).sum() / (count - 1)))
    size = float(np.abs(judged).max())
    return float(np.trace(centred)) / deviation if deviation > 1e-9 * size * count else None


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """So many places, at most, evenly over all."""
    return np.arange(count) if count <= most else np.arange(most) * count // most
