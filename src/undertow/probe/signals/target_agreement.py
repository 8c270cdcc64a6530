"""Do answers fit their own targets better than those of other samples? A test by exchange, in the background thread.

Let every answer be judged by the target of every sample of the batch. Where targets have nothing to do with inputs,
one's own is no better than another's: the difference, in deviations of what an exchange at random would give, is
normal around 0, whatever the loss, its scale, the frequency of the classes and what is usual at a place.

Of several batches of the same shape at once; NaN where nothing can be said.
"""

import numpy as np
from numpy.typing import NDArray

from undertow.probe.signals.labels import Labels

_FEWEST = 8  # samples
_FEWEST_OTHERS = 3  # samples whose target is not the most common one: with fewer, next to nothing is exchanged
_MOST = 48
_MOST_ALONG = 64  # places, or columns, of a sample
_MOST_JUDGED = 1 << 15

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def agreement_of_classes(logs: Floats, labels: Labels, places: int, ignored: int | None = None) -> Floats:
    """Of log-probabilities (batches × rows × classes) and labels (batches × rows): a sample is so many rows."""
    classes, samples = logs.shape[2], logs.shape[1] // places
    known = ((labels >= 0) & (labels < classes)).all(axis=1)
    if ignored is not None:  # padding: samples of different lengths cannot be exchanged
        known &= (labels != ignored).all(axis=1)
    along = _spread(places, _MOST_ALONG)
    some = _spread(samples, min(_MOST, int((_MOST_JUDGED / len(along)) ** 0.5)))
    found = np.full(len(logs), np.nan)
    if len(some) < _FEWEST:
        return found
    rows = some[:, None] * places + along
    targets = labels[:, rows]
    known &= _differ(targets)
    logs, targets = logs[known], targets[known]
    judged = np.zeros((len(logs), len(some), len(some)))
    for place in range(len(along)):
        judged += np.take_along_axis(logs[:, rows[:, place]], targets[:, None, :, place], axis=2)
    found[known] = _own_before_others(judged)
    return found


def agreement_of_numbers(prediction: Floats, target: Floats) -> Floats:
    """Of values in the same shape: batches, samples, and whatever a sample has."""
    found = np.full(len(prediction), np.nan)
    if prediction.shape != target.shape or prediction.ndim < 2 or not prediction.size:
        return found
    prediction, target = (one.reshape(*one.shape[:2], -1) for one in (prediction, target))
    some, along = _spread(prediction.shape[1], _MOST), _spread(prediction.shape[2], _MOST_ALONG)
    if len(some) < _FEWEST:
        return found
    prediction, target = (one[:, some[:, None], along] for one in (prediction, target))
    known = _differ(target)
    prediction, target = prediction[known], target[known]
    judged = np.zeros((len(target), len(some), len(some)))
    for column in range(len(along)):
        judged += prediction[:, :, None, column] * target[:, None, :, column]
    found[known] = _own_before_others(judged)
    return found


def _differ(targets: NDArray[np.float64 | np.int64]) -> Flags:
    """Whether enough samples have another target than most, of batches × samples × places."""
    batches, samples, places = targets.shape
    alike = np.ones((batches, samples, samples), np.bool_)
    for place in range(places):
        alike &= targets[:, :, None, place] == targets[:, None, :, place]
    return samples - alike.sum(axis=2).max(axis=1, initial=0) >= _FEWEST_OTHERS


def _own_before_others(judged: Floats) -> Floats:
    """NaN where answers, or targets, are all alike."""
    count = judged.shape[1]
    answers, targets = judged.mean(axis=2), judged.mean(axis=1)
    size = np.abs(judged).max(axis=(1, 2))
    judged -= answers[:, :, None]
    judged -= (targets - answers.mean(axis=1)[:, None])[:, None, :]
    deviation = np.sqrt(np.einsum("bij,bij->b", judged, judged) / (count - 1))
    own, unknown = np.einsum("bii->b", judged), np.full(len(judged), np.nan)
    return np.divide(own, deviation, out=unknown, where=deviation > 1e-9 * size * count)


def _spread(count: int, most: int) -> NDArray[np.int64]:
    """So many places, at most, evenly over all."""
    return np.arange(count) if count <= most else np.arange(most) * count // most
