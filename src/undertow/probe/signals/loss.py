"""What the loss function was given, read from the few nodes next to the root of the loss.

The training thread finds the loss function and copies a few rows of what it saw; the background thread makes
numbers of them (`loss_numbers`). So nothing waits for a device, and nothing of the graph is kept.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from undertow.probe.signals.broadcasting import stretched_column, was_broadcast
from undertow.probe.signals.handwritten_error import remade
from undertow.probe.signals.nodes import (
    SAME_VALUES,
    Edge,
    Node,
    edges,
    first_rows,
    is_leaf,
    only_edge,
    operation,
    parameter_at,
    producer,
    saved,
    saved_tensor,
    shape_of,
    signed,
)
from undertow.probe.signals.target_range import Reach, reach_of
from undertow.probe.signals.terms import Term, class_count, constant_factor, find_terms_and_weights, number_of
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
    def nbytes(self) -> int:
        copies = (self.log_probabilities, self.labels, self.class_shares, self.prediction, self.target)
        return sum(copy.numel() * copy.element_size() for copy in copies if copy is not None)


def read_loss(root: torch.Tensor, loss_scale: int | None = None, with_logits: bool = True) -> LossReading:
    """`loss_scale`: where a loss scaler keeps its factor, which does not count as one. `with_logits`: work out a logit
    of each row again, which takes as long as much of the rest."""
    terms, has_weights = find_terms_and_weights(root, loss_scale)
    if not terms:
        reading, column = LossReading(LossKind.UNKNOWN), stretched_column(root)
        if column is not None:
            reading.broadcast, reading.source = 1.0, nearest_parameter(column)
        return reading
    readings = [(term, _contract(term)) for term in terms]
    term, reading = min(readings, key=lambda pair: _preference(*pair))
    reading.source = nearest_parameter(term.given)
    reading.is_beside_weights = has_weights and not math.isnan(term.factor)
    with torch.no_grad():
        if term.kind in _OF_CLASSES:
            _copy_classes(term, reading, with_logits)
        elif term.kind == LossKind.ALIGNMENT:
            _copy_steps(term, reading)
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
    maker = _maker(term.given)
    if term.kind in (LossKind.CROSS_ENTROPY, LossKind.DIVERGENCE):
        log_softmax = producer(term.given)
        if log_softmax is not None and operation(log_softmax[0]) == "LogSoftmax":
            before = _input(log_softmax[0])
            reading.is_rectified = float(_maker(before) == "Relu")
            reading.is_probability = float(_maker(before) in _SQUASHING or _maker(_unscaled(before)) == "Softmax")
    if term.kind == LossKind.BINARY_OF_LOGITS:
        reading.is_probability = float(maker in _SQUASHING)
        reading.is_rectified = float(maker == "Relu")
    elif term.kind == LossKind.DIVERGENCE:
        reading.is_logit = float(maker == "Softmax")
    elif term.kind == LossKind.CROSS_ENTROPY and term.by_hand:
        reading.is_logit = _over_another_dimension(term)
    if term.kind not in (*_OF_CLASSES, LossKind.ALIGNMENT):
        reading.broadcast = was_broadcast(term)
    return reading


def _input(node: Node) -> Edge | None:
    found = edges(node)
    return found[0] if found else None


def _maker(edge: Edge | None) -> str:
    """The operation these values came from."""
    made_by = producer(edge, _CLIPPING)
    return "" if made_by is None or is_leaf(made_by[0]) else operation(made_by[0])


def _unscaled(edge: Edge | None) -> Edge | None:
    """Behind a temperature: one division, or product, by a number that cannot make logits of probabilities."""
    made_by = producer(edge, _CLIPPING)
    if made_by is None or is_leaf(made_by[0]) or operation(made_by[0]) not in ("Div", "Mul"):
        return None
    number = number_of(constant_factor(made_by[0]))
    if not number:
        return None
    scale = abs(number) if operation(made_by[0]) == "Mul" else 1 / abs(number)
    return only_edge(made_by[0]) if scale <= _TEMPERED else None


def _over_another_dimension(term: Term) -> float | None:
    """Whether the labels pick along another dimension than that of the softmax; None where it cannot be told."""
    if term.given is None or is_leaf(term.given[0]) or operation(term.given[0]) != "LogSoftmax":
        return None  # a view or a transposition lies between them
    shape, summed = shape_of(term.given), signed(saved(term.given[0], "dim"))
    picked = signed(saved(term.node, "dim")) if operation(term.node) == "Gather" else None
    if shape is None or summed is None or picked is None:
        return None
    return float(summed % len(shape) != picked % len(shape))


# -- losses of classes -----------------------------------------------------------------------------------------


def _copy_classes(term: Term, reading: LossReading, with_logits: bool) -> None:
    if term.by_hand:
        _copy_by_hand(term, reading)
    else:
        given, target = saved_tensor(term.node, "self"), saved_tensor(term.node, "target")
        if given is None or target is None:
            return
        reading.rows, reading.columns = target.numel(), given.shape[1] if given.dim() > 1 else given.shape[0]
        reading.places = max(1, target.numel() // max(1, target.shape[0])) if target.dim() > 1 else 1
        reading.ignored = signed(saved(term.node, "ignore_index"))
        reading.labels, reading.address = target.reshape(-1)[:_MOST_LABELS].clone(), target.data_ptr()
        classes_last = given[None] if given.dim() == 1 else _some(given).movedim(1, -1)
        reading.log_probabilities = _some(classes_last.reshape(-1, reading.columns)).clone()
    if term.kind == LossKind.CROSS_ENTROPY:
        log_softmax = producer(term.given)
        if log_softmax is not None:
            reading.of_samples = _is_of_samples(log_softmax[0])
            reading.first_logits = _first_logits(log_softmax[0]) if with_logits else None
            reading.quotient = _quotient(log_softmax[0])


def _copy_steps(term: Term, reading: LossReading) -> None:
    """Log-probabilities of each step of each sequence; labels have no step of their own."""
    given = saved_tensor(term.node, "log_probs")
    if given is not None and given.dim() >= 2:
        reading.log_probabilities = _some(given.reshape(-1, given.shape[-1])).clone()


def _some(values: torch.Tensor) -> torch.Tensor:
    per_row = max(1, values.numel() // max(1, values.shape[0]))
    return first_rows(values, max(_MOST_ELEMENTS, _FEWEST_ROWS * per_row) if values.dim() <= 2 else _MOST_ELEMENTS)


def _copy_by_hand(term: Term, reading: LossReading) -> None:
    made_by = producer(term.given)
    logs = saved_tensor(made_by[0], "result") if made_by is not None else None
    if made_by is None or logs is None or logs.dim() < 2 or operation(made_by[0]) != "LogSoftmax":
        return
    dimension = signed(saved(made_by[0], "dim"))
    logs = logs.movedim(-1 if dimension is None else dimension, -1)
    reading.columns = logs.shape[-1]
    reading.rows = logs.numel() // reading.columns
    reading.log_probabilities = _some(logs.reshape(-1, reading.columns)).clone()
    name = operation(term.node)
    if name == "Gather":
        labels = saved_tensor(term.node, "index")
    elif name == "Index":
        indices = saved(term.node, "indices")
        labels = indices[1] if isinstance(indices, (tuple, list)) and len(indices) == 2 and logs.dim() == 2 else None
    else:
        targets = constant_factor(term.node)
        if isinstance(targets, torch.Tensor) and targets.dim() == logs.dim() and term.kind in _OF_LABELS:
            targets = targets.movedim(-1 if dimension is None else dimension, -1).reshape(-1, reading.columns)
            reading.class_shares = targets[: len(reading.log_probabilities)].clone()
        return
    if isinstance(labels, torch.Tensor) and labels.numel() == reading.rows:
        reading.labels = labels.detach().reshape(-1)[:_MOST_LABELS].clone()


def _is_of_samples(log_softmax: Node) -> bool:
    """Rows that were not reshaped since a linear layer of two dimensions; places of sequences are, before or behind."""
    made_by = _input(log_softmax)
    if made_by is None or is_leaf(made_by[0]) or operation(made_by[0]) not in ("Addmm", "Mm"):
        return False
    before, inside = edges(made_by[0]), parameter_at(made_by[0], 2 if operation(made_by[0]) == "Addmm" else 1)
    rows = before[1 if operation(made_by[0]) == "Addmm" else 0]
    reshaped = rows is not None and not is_leaf(rows[0]) and operation(rows[0]) in _ROW_KEEPING
    return inside is not None and not (reshaped and len(_sizes(rows)) > 2)


def _sizes(edge: Edge | None) -> tuple[int, ...]:
    """The shape of what a view was made of."""
    sizes = saved(edge[0], "self_sym_sizes") if edge is not None else None
    return tuple(sizes) if isinstance(sizes, (tuple, list)) else ()


def _first_logits(log_softmax: Node) -> torch.Tensor | None:
    """Log-softmax saves differences only, so one logit of each row is computed again from the last linear layer.

    None when something else than a linear layer made the logits.
    """
    made_by, shape = producer(_input(log_softmax), _ROW_KEEPING), shape_of((log_softmax, 0))
    if made_by is None or is_leaf(made_by[0]) or not shape or class_count(log_softmax, shape) != shape[-1]:
        return None
    node, bias = made_by[0], None
    has_bias = operation(node) in ("Addmm", "Add")
    if has_bias:
        bias = parameter_at(node, 0 if operation(node) == "Addmm" else 1)
    if operation(node) == "Add":  # a linear layer of more than two dimensions: a product, then the bias
        product = producer(_input(node), _ROW_KEEPING)
        node = product[0] if product is not None else node
    name = "" if is_leaf(node) else operation(node)
    inputs = saved_tensor(node, {"Addmm": "mat1", "Mm": "self"}.get(name, ""))
    weight = parameter_at(node, 2 if name == "Addmm" else 1)
    if inputs is None or inputs.dim() != 2 or weight is None or weight.dim() != 2 or len(weight) != shape[-1]:
        return None
    if has_bias and (bias is None or bias.dim() != 1):
        return None
    logits = inputs[:_LOG_Z_ROWS].float() @ weight[0].float()
    return logits if bias is None else logits + bias[0].float()


def _quotient(log_softmax: Node) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A softmax written out by hand: exponentials divided by their sum."""
    division = producer(_input(log_softmax), _CLIPPING)
    if division is None or is_leaf(division[0]) or operation(division[0]) != "Div":
        return None
    above, below = saved_tensor(division[0], "self"), saved_tensor(division[0], "other")
    if above is None or below is None or above.dim() != 2 or tuple(below.shape) != (above.shape[0], 1):
        return None
    above = _some(above)
    return above.clone(), below[: len(above)].clone()


# -- losses of elements ----------------------------------------------------------------------------------------


def _copy_elements(term: Term, reading: LossReading) -> None:
    shape = shape_of((term.node, 0))
    if not term.by_hand:
        prediction, target = saved_tensor(term.node, "self"), saved_tensor(term.node, "target")
        if prediction is None or target is None:
            return
        shape = tuple(prediction.shape)
        reading.prediction = first_rows(prediction, _MOST_ELEMENTS).clone()
        reading.target, reading.address = first_rows(target, _MOST_ELEMENTS).clone(), target.data_ptr()
    elif not reading.broadcast and (both := remade(term)) is not None:
        reading.prediction, reading.target = both
    if shape:
        reading.rows, reading.columns = shape[0], math.prod(shape[1:])


_MOST_NODES = 64


def nearest_parameter(given: Edge | None) -> int | None:
    """The id of the tensor, of the fewest operations away; a single number (a temperature, a scale) is none."""
    waiting, seen = deque([given]), set[Any]()
    while waiting and len(seen) < _MOST_NODES:
        edge = waiting.popleft()
        if edge is None or edge[0] in seen:
            continue
        seen.add(edge[0])
        if not is_leaf(edge[0]):
            waiting.extend(edges(edge[0]))
        elif edge[0].variable.dim() > 0:
            return id(edge[0].variable)
    return None
