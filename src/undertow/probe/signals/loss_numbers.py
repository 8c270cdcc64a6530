"""Numbers from what a loss function was given. Runs in the background thread."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.probe.signals.agreement import agreement_of_classes, agreement_of_numbers
from undertow.probe.signals.labels import LabelBook
from undertow.probe.signals.loss import LossReading
from undertow.schema.quantities import LossKind

_PROBABILITY = 0.05  # how far probabilities may be from summing to 1: half precision, or a small constant added
_FEWEST_RANKED = 4  # classes
_PIECE = 1 << 14  # elements that torch converts on the calling thread alone
_OF_LABELS = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)
_OF_LOGARITHMS = (*_OF_LABELS, LossKind.ALIGNMENT)
_BINARY = (LossKind.BINARY_OF_PROBABILITIES, LossKind.BINARY_OF_LOGITS)

Floats = NDArray[np.float64]


def loss_numbers(reading: LossReading, book: LabelBook) -> dict[str, float]:
    """The scalars of a frame that speak of its loss function; a name is missing where nothing is known."""
    found = {"loss_kind": reading.kind}
    if reading.kind == LossKind.UNKNOWN:
        return found if reading.broadcast is None else found | {"loss_broadcast": reading.broadcast}
    found |= {"loss_factor": reading.factor, "loss_reduction": reading.reduction}
    if reading.rows:
        found |= {"loss_rows": float(reading.rows), "loss_classes": float(reading.columns)}
    with np.errstate(all="ignore"):
        if reading.log_probabilities is not None:
            found |= _of_classes(reading, _array(reading.log_probabilities), book)
        if reading.prediction is not None and reading.target is not None:
            found |= _of_elements(reading, _array(reading.prediction), _array(reading.target), book)
        if reading.reach is not None:
            found |= _beyond_reach(*reading.reach)
        contract = {
            "loss_input_is_probability": reading.is_probability or _is_quotient_of_one(reading),
            "loss_input_is_logit": reading.is_logit if reading.is_logit is not None else _is_logit(reading),
            "loss_input_is_rectified": reading.is_rectified,
            "loss_broadcast": reading.broadcast,
        }
    return found | {name: float(flag) for name, flag in contract.items() if flag is not None}


def _array(tensor: torch.Tensor) -> Floats:
    """As float64, by numpy or in small pieces.

    A large conversion by torch would be shared among threads. Asked for by this thread, those are a second team, and
    from then on the machine has more of them than processors: OpenMP then lets all of them sleep between any two
    operations, which slows the whole training down.
    """
    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor.numpy().astype(np.float64)
    pieces = [piece.double().numpy() for piece in tensor.reshape(-1).split(_PIECE)]
    return np.concatenate(pieces).reshape(tensor.shape) if pieces else np.zeros(tuple(tensor.shape))


def _of_classes(reading: LossReading, logs: Floats, book: LabelBook) -> dict[str, float]:
    found: dict[str, float] = {}
    labels: NDArray[np.int64] | None = None
    if reading.labels is not None:
        labels = reading.labels.cpu().numpy().astype(np.int64)
    elif reading.class_shares is not None:
        labels = _array(reading.class_shares).argmax(axis=1)
    counted = np.ones(len(logs), np.bool_)
    if labels is not None:
        found |= book.numbers(labels, reading.columns, reading.ignored)
        if reading.ignored is not None:
            counted = labels[: len(logs)] != reading.ignored
    if reading.kind != LossKind.CROSS_ENTROPY or not counted.any():
        return found
    if labels is not None:
        found["output_accuracy"] = float((logs.argmax(axis=1) == labels[: len(logs)])[counted].mean())
        if reading.of_samples:
            found |= _miss_rank(logs[counted], labels[: len(logs)][counted])
        found |= _agreement(agreement_of_classes(logs, labels[: len(logs)], reading.places, reading.ignored))
    found["output_max_probability"] = float(np.exp(logs.max(axis=1))[counted].mean())
    if reading.first_logits is not None:
        count = min(len(logs), len(reading.first_logits))
        found["output_log_z"] = float((_array(reading.first_logits)[:count] - logs[:count, 0]).mean())
    return found


def _agreement(deviations: float | None) -> dict[str, float]:
    return {} if deviations is None else {"output_agreement": deviations}


def _miss_rank(logs: Floats, labels: NDArray[np.int64]) -> dict[str, float]:
    """Where wrong answers have the label among the other classes: 0 for the next, 1 for the last, 0.5 at random."""
    classes = logs.shape[1]
    missed = logs.argmax(axis=1) != labels
    if classes < _FEWEST_RANKED or not missed.any() or (labels < 0).any() or (labels >= classes).any():
        return {}
    logs, labels = logs[missed], labels[missed]
    of_label = np.take_along_axis(logs, labels[:, None], axis=1)
    ranks = (logs > of_label).sum(axis=1) + 0.5 * ((logs == of_label).sum(axis=1) - 1)
    return {"output_miss_rank": float((ranks - 1).mean() / (classes - 2))}


def _of_elements(reading: LossReading, prediction: Floats, target: Floats, book: LabelBook) -> dict[str, float]:
    found = {
        "prediction_mean": float(prediction.mean()),
        "prediction_std": float(prediction.std()),
        "target_mean": float(target.mean()),
        "target_std": float(target.std()),
    }
    if not reading.is_beside_weights:  # returns that a policy has earned are hardly foretold for long
        found |= _agreement(agreement_of_numbers(prediction, target))
    # Targets of one column that are all 0 or 1 are labels of two classes.
    if reading.kind in _BINARY and reading.columns == 1 and np.isin(target, (0.0, 1.0)).all():
        found |= book.numbers(target.reshape(-1).astype(np.int64), 2)
    return found


def _beyond_reach(least: float, largest: float, wanted: torch.Tensor) -> dict[str, float]:
    """What part of the targets' variance stays as an error, however well the model learns."""
    target = _array(wanted)
    variance = float(target.var())
    beyond = target - target.clip(least, largest)
    return {"targets_beyond_reach": float((beyond**2).mean()) / variance} if variance > 0 else {}


def _is_quotient_of_one(reading: LossReading) -> float | None:
    if reading.quotient is None:
        return reading.is_probability
    shares = _array(reading.quotient[0]) / _array(reading.quotient[1])
    return float((shares >= 0).all() and (np.abs(shares.sum(axis=1) - 1) < _PROBABILITY).all())


def _is_logit(reading: LossReading) -> float | None:
    """Whether what was taken for probabilities or their logarithms is neither."""
    if reading.kind in _OF_LOGARITHMS and reading.log_probabilities is not None:
        # Also a softmax, where it was taken over another dimension than that of the classes.
        sums = np.exp(_array(reading.log_probabilities)).sum(axis=1)
        return float((np.abs(sums - 1) > _PROBABILITY).mean() > 0.5)
    if reading.kind == LossKind.BINARY_OF_PROBABILITIES and reading.prediction is not None:
        prediction = _array(reading.prediction)
        return float(((prediction < 0) | (prediction > 1)).any())
    return None
