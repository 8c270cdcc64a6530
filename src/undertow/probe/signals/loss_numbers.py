"""Numbers from what a loss function was given. Runs in the background thread.

Steps of a training have losses alike: a few operations on many of them together take hardly longer than on one.
"""

from collections.abc import Iterator, Sequence
from math import isnan

import numpy as np
import torch
from numpy.typing import NDArray

from undertow.probe.signals.labels import LabelBook, Labels
from undertow.probe.signals.loss import LossReading
from undertow.probe.signals.target_agreement import Flags, Floats, agreement_of_classes, agreement_of_numbers
from undertow.schema import LossKind

_PROBABILITY = 0.05  # how far probabilities may be from summing to 1: half precision, or a small constant added
_ROWS_SUMMED = 32
_FEWEST_RANKED = 4  # classes
_MOST_TOGETHER = 16  # losses, or
_MOST_ELEMENTS = 1 << 16  # of a copy: what does not fit into the processor's cache is not quicker together
_PIECE = 1 << 14  # elements that torch converts on the calling thread alone
_OF_LABELS = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)
_OF_LOGARITHMS = (*_OF_LABELS, LossKind.ALIGNMENT)
_MAY_BE_UNKNOWN = ("output_agreement", "output_miss_rank")  # NaN then; that of others is a value like any other
_BINARY = (LossKind.BINARY_OF_PROBABILITIES, LossKind.BINARY_OF_LOGITS)

Numbers = dict[str, float]
_Many = list[LossReading]


def loss_numbers(readings: Sequence[LossReading], book: LabelBook) -> list[Numbers]:
    """The scalars of frames that speak of their loss functions, in the order of the steps; a name is missing where
    nothing is known."""
    with np.errstate(all="ignore"):
        return [found for many in _alike(readings) for found in _of_alike(many, book)]


def _alike(readings: Sequence[LossReading]) -> Iterator[_Many]:
    """Successive ones that differ in nothing but values."""
    many: _Many = []
    key: object = None
    for reading in readings:
        other = _likeness(reading)
        size = max((copy.numel() for copy in reading.copies if copy is not None), default=0)
        most = min(_MOST_TOGETHER, _MOST_ELEMENTS // max(size, reading.columns, 1))
        if many and (other != key or len(many) >= most):
            yield many
            many = []
        key = other
        many.append(reading)
    if many:
        yield many


def _likeness(reading: LossReading) -> object:
    shapes = [None if copy is None else copy.shape for copy in reading.copies]
    facts = reading.kind, reading.columns, reading.places, reading.ignored, reading.of_samples
    return facts, reading.is_beside_weights, shapes


def _of_alike(many: _Many, book: LabelBook) -> list[Numbers]:
    one, found = many[0], [_facts(reading) for reading in many]
    if one.kind == LossKind.UNKNOWN:
        return found
    is_logit: list[float | None] = [None] * len(many)
    if one.log_probabilities is not None:
        logs = _stacked(many, "log_probabilities")
        _add_classes(found, many, logs, book)
        if one.kind in _OF_LOGARITHMS:
            # Also a softmax, where it was taken over another dimension than that of the classes.
            amiss = np.abs(np.exp(logs[:, :_ROWS_SUMMED]).sum(axis=2) - 1) > _PROBABILITY
            is_logit = [float(share > 0.5) for share in amiss.mean(axis=1)]
    if one.prediction is not None and one.target is not None:
        prediction = _stacked(many, "prediction")
        _add_elements(found, one, prediction, _stacked(many, "target"), book)
        if one.kind == LossKind.BINARY_OF_PROBABILITIES:
            beyond = (prediction < 0) | (prediction > 1)
            is_logit = [float(one.any()) for one in beyond]
    for reading, values, by_values in zip(many, found, is_logit):
        if reading.reach is not None:
            values |= _beyond_reach(*reading.reach)
        values |= _contract(reading, by_values)
    return found


def _add(found: list[Numbers], more: list[Numbers]) -> None:
    for values, others in zip(found, more):
        values |= others


def _facts(reading: LossReading) -> Numbers:
    found: Numbers = {"loss_kind": reading.kind}
    if reading.kind == LossKind.UNKNOWN:
        return found if reading.broadcast is None else found | {"loss_broadcast": reading.broadcast}
    found |= {"loss_factor": reading.factor, "loss_reduction": reading.reduction}
    if reading.rows:
        found |= {"loss_rows": float(reading.rows), "loss_classes": float(reading.columns)}
    return found


def _contract(reading: LossReading, is_logit: float | None) -> Numbers:
    flags = {
        "loss_input_is_probability": reading.is_probability or _is_quotient_of_one(reading),
        "loss_input_is_logit": reading.is_logit if reading.is_logit is not None else is_logit,
        "loss_input_is_rectified": reading.is_rectified,
        "loss_broadcast": reading.broadcast,
    }
    return {name: float(flag) for name, flag in flags.items() if flag is not None}


def _stacked(many: _Many, copy: str) -> Floats:
    arrays = [_array(getattr(reading, copy)) for reading in many]
    return np.stack(arrays) if len(arrays) > 1 else arrays[0][None]


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


def _labels(many: _Many) -> Labels | None:
    if many[0].labels is not None:
        return np.stack([r.labels.cpu().numpy().astype(np.int64) for r in many if r.labels is not None])
    if many[0].class_shares is not None:
        return _stacked(many, "class_shares").argmax(axis=2)
    return None


def _add_classes(found: list[Numbers], many: _Many, logs: Floats, book: LabelBook) -> None:
    one, labels = many[0], _labels(many)
    counted = np.ones(logs.shape[:2], np.bool_)
    if labels is not None:
        _add(found, book.numbers(labels, one.columns, one.ignored))
        labels = labels[:, : logs.shape[1]]
        if one.ignored is not None:
            counted = labels != one.ignored
    if one.kind != LossKind.CROSS_ENTROPY or not counted.any():
        return
    columns: dict[str, Floats] = {}
    if labels is not None:
        answers = logs.argmax(axis=2)
        columns["output_accuracy"] = _mean(answers == labels, counted)
        if one.of_samples:
            columns["output_miss_rank"] = _miss_rank(logs, labels, counted, answers != labels)
        columns["output_agreement"] = agreement_of_classes(logs, labels, one.places, one.ignored)
    columns["output_max_probability"] = _mean(np.exp(logs.max(axis=2)), counted)
    if one.first_logits is not None:
        firsts = _stacked(many, "first_logits")
        count = min(logs.shape[1], firsts.shape[1])
        columns["output_log_z"] = (firsts[:, :count] - logs[:, :count, 0]).mean(axis=1)
    _put(found, columns, counted.sum(axis=1) > 0)


def _put(found: list[Numbers], columns: dict[str, Floats], known: Flags | None = None) -> None:
    """Of each loss its numbers, where they are known."""
    for name, values in columns.items():
        for place, value in enumerate(values.tolist()):
            if (known is None or known[place]) and not (name in _MAY_BE_UNKNOWN and isnan(value)):
                found[place][name] = value


def _mean(values: NDArray[np.float64] | Flags, counted: Flags) -> Floats:
    return np.where(counted, values, 0).sum(axis=1) / counted.sum(axis=1)


def _miss_rank(logs: Floats, labels: Labels, counted: Flags, wrong: Flags) -> Floats:
    """Where wrong answers have the label among the other classes: 0 for the next, 1 for the last, 0.5 at random."""
    classes = logs.shape[2]
    if classes < _FEWEST_RANKED:
        return np.full(len(logs), np.nan)
    within = (labels >= 0) & (labels < classes)
    of_label = np.take_along_axis(logs, labels.clip(0, classes - 1)[:, :, None], axis=2)
    ranks = (logs > of_label).sum(axis=2) + 0.5 * ((logs == of_label).sum(axis=2) - 1)
    found = _mean((ranks - 1) / (classes - 2), wrong & counted)
    return np.where((within | ~counted).all(axis=1), found, np.nan)


def _add_elements(found: list[Numbers], one: LossReading, prediction: Floats, target: Floats, book: LabelBook) -> None:
    flat = {"prediction": prediction.reshape(len(prediction), -1), "target": target.reshape(len(target), -1)}
    columns = {f"{name}_mean": values.mean(axis=1) for name, values in flat.items()}
    columns |= {f"{name}_std": values.std(axis=1) for name, values in flat.items()}
    if not one.is_beside_weights:  # returns that a policy has earned are hardly foretold for long
        columns["output_agreement"] = agreement_of_numbers(prediction, target)
    _put(found, columns)
    # Targets of one column that are all 0 or 1 are labels of two classes.
    if one.kind in _BINARY and one.columns == 1:
        binary = np.flatnonzero(np.isin(flat["target"], (0.0, 1.0)).all(axis=1))
        if len(binary):
            _add([found[place] for place in binary], book.numbers(flat["target"][binary].astype(np.int64), 2))


def _beyond_reach(least: float, largest: float, wanted: torch.Tensor) -> Numbers:
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
