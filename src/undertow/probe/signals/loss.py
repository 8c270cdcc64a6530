"""What the loss function was given, read from the few nodes next to the root of the loss.

The training thread finds the loss function and copies a few rows of what it saw; the background thread makes
numbers of them (`loss_numbers`). So nothing waits for a device, and nothing of the graph is kept.
"""

import math
from dataclasses import dataclass

import torch

from undertow.probe.signals.broadcasting import stretched_column, was_broadcast
from undertow.probe.signals.graph_values import NOTHING, SAME_VALUES, Value, first_rows, nearest_parameter, number_of
from undertow.probe.signals.handwritten_error import remade
from undertow.probe.signals.linear_layer import PRODUCTS, linear_layer, weight_of
from undertow.probe.signals.target_range import Reach, reach_of
from undertow.probe.signals.terms import Term, class_count, find_terms
from undertow.schema import LossKind, LossReduction

_MOST_ELEMENTS = 1 << 18  # copied of one tensor, or
_FEWEST_ROWS = 16
_MOST_LABELS = 1 << 20
_LOG_Z_ROWS = 64
_OF_LABELS = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)
_OF_CLASSES = (*_OF_LABELS, LossKind.DIVERGENCE)
# Values cut off at a limit, or some rows of them only, as where a mask says which nodes of a graph have labels.
_CLIPPING = SAME_VALUES | {"Clamp", "ClampMin", "ClampMax", "Select", "Index", "IndexSelect", "MaskedSelect"}
_ROW_KEEPING = frozenset({"View", "UnsafeView", "ReshapeAlias", "ToCopy", "Alias"})
_SQUASHING = ("Softmax", "Sigmoid")
_TEMPERED = 8.0  # by which probabilities are multiplied at most: more can be a way to sharpen them


@dataclass(slots=True)
class LossReading:
    """Facts of one loss function, and copies of what it was given. Copies may still be on a device."""

    kind: float
    factor: float = math.nan
    reduction: float = LossReduction.NONE
    rows: int = 0
    columns: int = 0
    is_probability: float | None = None  # None: the copies tell, or nobody does
    is_logit: float | None = None
    is_rectified: float | None = None  # logits that come out of a ReLU
    broadcast: float | None = None
    log_probabilities: torch.Tensor | None = None  # leading rows × classes
    labels: torch.Tensor | None = None  # of all rows
    class_shares: torch.Tensor | None = None  # targets that are probabilities: leading rows × classes
    ignored: int | None = None
    places: int = 1  # rows that one sample has
    of_samples: bool = False  # a linear layer gave one row of logits for each sample, not for each place of it
    first_logits: torch.Tensor | None = None  # the first column of the logits, leading rows
    quotient: tuple[torch.Tensor, torch.Tensor] | None = None  # what was taken for logits is this division
    prediction: torch.Tensor | None = None
    target: torch.Tensor | None = None
    address: int | None = None  # of the targets, as the loss function was given them
    source: int | None = None  # id of the parameter that is nearest to it: that of the layer that made its input
    is_beside_weights: bool = False  # another part of the loss has weights for its rows, as that of a policy has
    reach: Reach | None = None  # of the function that made the prediction, with the targets it is compared with

    @property
    def copies(self) -> tuple[torch.Tensor | None, ...]:
        of_classes = (self.log_probabilities, self.labels, self.class_shares, self.first_logits)
        return (*of_classes, self.prediction, self.target)

    @property
    def nbytes(self) -> int:
        return sum(copy.numel() * copy.element_size() for copy in self.copies if copy is not None)


def read_loss(root: torch.Tensor, loss_scale: int | None = None, with_logits: bool = True) -> LossReading:
    """`loss_scale`: where a loss scaler keeps its factor, which does not count as one. `with_logits`: work out a logit
    of each row again, which takes as long as much of the rest."""
    terms, has_weights = find_terms(root, loss_scale)
    if not terms:
        reading, column = LossReading(LossKind.UNKNOWN), stretched_column(root)
        if column is not None:
            reading.broadcast, reading.source = 1.0, nearest_parameter(column)
        return reading
    term, reading = min(((term, _contract(term)) for term in terms), key=lambda pair: _preference(*pair))
    reading.source = nearest_parameter(term.given)
    reading.is_beside_weights = has_weights and not math.isnan(term.factor)
    with torch.no_grad():
        if term.kind in _OF_CLASSES:
            _copy_classes(term, reading, with_logits)
        elif term.kind == LossKind.ALIGNMENT:  # of each step of each sequence; labels have no step of their own
            given = term.value.tensor("log_probs")
            if given is not None and given.dim() >= 2:
                reading.log_probabilities = _some(given.reshape(-1, given.shape[-1])).clone()
        else:
            _copy_elements(term, reading)
            reading.reach = reach_of(term)
    return reading


def _preference(term: Term, reading: LossReading) -> tuple[bool, bool, int]:
    """Of several loss functions: one whose contract is surely broken, then one with labels, then the nearest."""
    broken = 1.0 in (reading.is_probability, reading.is_logit, reading.broadcast)
    return not broken, term.kind not in _OF_LABELS, term.depth


def _contract(term: Term) -> LossReading:
    reading = LossReading(term.kind, term.factor, term.reduction)
    log_softmax = term.given.producer()
    if term.kind in (LossKind.CROSS_ENTROPY, LossKind.DIVERGENCE) and log_softmax.operation == "LogSoftmax":
        before = log_softmax.side(0)
        made_by = _maker(before)
        reading.is_rectified = float(made_by == "Relu")
        reading.is_probability = float(made_by in _SQUASHING or _maker(_unscaled(before)) == "Softmax")
    if term.kind == LossKind.BINARY_OF_LOGITS:
        reading.is_probability = float(_maker(term.given) in _SQUASHING)
        reading.is_rectified = float(_maker(term.given) == "Relu")
    elif term.kind == LossKind.DIVERGENCE:
        reading.is_logit = float(_maker(term.given) == "Softmax")
    elif term.kind == LossKind.CROSS_ENTROPY and term.by_hand:
        reading.is_logit = _over_another_dimension(term)
    if term.kind not in (*_OF_CLASSES, LossKind.ALIGNMENT):
        reading.broadcast = was_broadcast(term)
    return reading


def _maker(value: Value) -> str:
    """The operation these values came from."""
    return value.producer(_CLIPPING).operation


def _unscaled(value: Value) -> Value:
    """Behind a temperature: one division, or product, by a number that cannot make logits of probabilities."""
    made_by = value.producer(_CLIPPING)
    number = number_of(made_by.factor) if made_by.operation in ("Div", "Mul") else None
    if not number:
        return NOTHING
    scale = abs(number) if made_by.operation == "Mul" else 1 / abs(number)
    return made_by.only if scale <= _TEMPERED else NOTHING


def _over_another_dimension(term: Term) -> float | None:
    """Whether the labels pick along another dimension than that of the softmax; None where it cannot be told."""
    if term.given.operation != "LogSoftmax" or term.value.operation != "Gather":
        return None  # a view or a transposition lies between them
    shape, summed, picked = term.given.shape, term.given.integer("dim"), term.value.integer("dim")
    if shape is None or summed is None or picked is None:
        return None
    return float(summed % len(shape) != picked % len(shape))


# -- losses of classes -----------------------------------------------------------------------------------------


def _copy_classes(term: Term, reading: LossReading, with_logits: bool) -> None:
    log_softmax = term.given.producer()
    if term.by_hand:
        _copy_by_hand(term, log_softmax, reading)
    else:
        given, target = term.value.tensor("self"), term.value.tensor("target")
        if given is None or target is None:
            return
        reading.rows, reading.columns = target.numel(), given.shape[1] if given.dim() > 1 else given.shape[0]
        reading.places = max(1, target.numel() // max(1, target.shape[0])) if target.dim() > 1 else 1
        reading.ignored = term.value.integer("ignore_index")
        reading.labels, reading.address = target.reshape(-1)[:_MOST_LABELS].clone(), target.data_ptr()
        classes_last = given[None] if given.dim() == 1 else _some(given).movedim(1, -1)
        reading.log_probabilities = _some(classes_last.reshape(-1, reading.columns)).clone()
    if term.kind == LossKind.CROSS_ENTROPY and log_softmax:
        reading.of_samples = _is_of_samples(log_softmax.side(0))
        reading.first_logits = _first_logits(log_softmax) if with_logits else None
        reading.quotient = _quotient(log_softmax.side(0).producer(_CLIPPING))


def _some(values: torch.Tensor) -> torch.Tensor:
    per_row = max(1, values.numel() // max(1, values.shape[0]))
    return first_rows(values, max(_MOST_ELEMENTS, _FEWEST_ROWS * per_row) if values.dim() <= 2 else _MOST_ELEMENTS)


def _copy_by_hand(term: Term, log_softmax: Value, reading: LossReading) -> None:
    logs = log_softmax.tensor("result")
    if logs is None or logs.dim() < 2 or log_softmax.operation != "LogSoftmax":
        return
    dimension = log_softmax.integer("dim")
    dimension = -1 if dimension is None else dimension
    logs = logs.movedim(dimension, -1)
    reading.columns = logs.shape[-1]
    reading.rows = logs.numel() // reading.columns
    reading.log_probabilities = _some(logs.reshape(-1, reading.columns)).clone()
    labels = None
    if term.value.operation == "Gather":
        labels = term.value.tensor("index")
    elif term.value.operation == "Index":
        indices = term.value.saved("indices")
        labels = indices[1] if isinstance(indices, (tuple, list)) and len(indices) == 2 and logs.dim() == 2 else None
    else:
        targets = term.value.factor
        if isinstance(targets, torch.Tensor) and targets.dim() == logs.dim() and term.kind in _OF_LABELS:
            targets = targets.movedim(dimension, -1).reshape(-1, reading.columns)
            reading.class_shares = targets[: len(reading.log_probabilities)].clone()
    if isinstance(labels, torch.Tensor) and labels.numel() == reading.rows:
        reading.labels = labels.detach().reshape(-1)[:_MOST_LABELS].clone()


def _is_of_samples(logits: Value) -> bool:
    """Rows that were not reshaped since a linear layer of two dimensions; places of sequences are, before or behind."""
    if logits.operation not in PRODUCTS or weight_of(logits) is None:
        return False
    rows = logits.side(1 if logits.operation == "Addmm" else 0)
    sizes = rows.saved("self_sym_sizes") if rows.operation in _ROW_KEEPING else None
    return not isinstance(sizes, (tuple, list)) or len(sizes) <= 2


def _first_logits(log_softmax: Value) -> torch.Tensor | None:
    """Log-softmax saves differences only, so one logit of each row is computed again from the last linear layer.

    None when something else than a linear layer made the logits.
    """
    shape, layer = log_softmax.shape, linear_layer(log_softmax.side(0).producer(_ROW_KEEPING), _ROW_KEEPING)
    if not shape or class_count(log_softmax, shape) != shape[-1] or layer is None or len(layer.weight) != shape[-1]:
        return None
    logits = layer.inputs[:_LOG_Z_ROWS].float() @ layer.weight[0].float()
    return logits if layer.bias is None else logits + layer.bias[0].float()


def _quotient(division: Value) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A softmax written out by hand: exponentials divided by their sum."""
    if division.operation != "Div":
        return None
    above, below = division.tensor("self"), division.tensor("other")
    if above is None or below is None or above.dim() != 2 or tuple(below.shape) != (above.shape[0], 1):
        return None
    above = _some(above)
    return above.clone(), below[: len(above)].clone()


# -- losses of elements ----------------------------------------------------------------------------------------


def _copy_elements(term: Term, reading: LossReading) -> None:
    shape = term.value.shape
    if not term.by_hand:
        prediction, target = term.value.tensor("self"), term.value.tensor("target")
        if prediction is None or target is None:
            return
        shape = tuple(prediction.shape)
        reading.prediction = first_rows(prediction, _MOST_ELEMENTS).clone()
        reading.target, reading.address = first_rows(target, _MOST_ELEMENTS).clone(), target.data_ptr()
    elif not reading.broadcast and (both := remade(term)) is not None:
        reading.prediction, reading.target = both
    if shape:
        reading.rows, reading.columns = shape[0], math.prod(shape[1:])
