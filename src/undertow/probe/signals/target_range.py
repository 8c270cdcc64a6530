"""Can a prediction reach its targets? Where a function of a known range comes last, nothing beyond it can be learnt."""

import math

import torch

from undertow.probe.signals.nodes import edges, first_rows, is_leaf, operation, producer, saved_tensor
from undertow.probe.signals.terms import Term
from undertow.schema import LossKind

Reach = tuple[float, float, torch.Tensor]  # the least and the largest value, and a copy of the targets

_MOST_ELEMENTS = 1 << 14
_RANGES = {
    "Relu": (0.0, math.inf),
    "Softplus": (0.0, math.inf),
    "Exp": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
}
_OF_ERRORS = (LossKind.MEAN_SQUARE, LossKind.ABSOLUTE)
_BINARY = (LossKind.BINARY_OF_LOGITS, LossKind.BINARY_OF_PROBABILITIES)


def reach_of(term: Term) -> Reach | None:
    """None where the prediction was made by anything else, or the targets cannot be seen."""
    made_by = producer(term.given)
    limits = (0.0, 1.0) if term.kind in _BINARY else None  # whatever made it: targets are probabilities here
    if term.kind in _OF_ERRORS and made_by is not None and not is_leaf(made_by[0]):
        limits = _RANGES.get(operation(made_by[0]))
    targets = _targets(term) if limits is not None else None
    if limits is None or targets is None:
        return None
    return (*limits, first_rows(targets, _MOST_ELEMENTS).clone())


def _targets(term: Term) -> torch.Tensor | None:
    if not term.by_hand:
        return saved_tensor(term.node, "target")
    # Written out by hand only the error is kept, and what the last function put out: the rest is arithmetic.
    made_by, error = producer(term.given), saved_tensor(term.node, "self")
    given = None if made_by is None else saved_tensor(made_by[0], "result")
    difference = next((one for one in edges(term.node) if one is not None), None)
    if given is None or error is None or difference is None or given.numel() != error.numel():
        return None
    if operation(difference[0]) != "Sub" or error.numel() > _MOST_ELEMENTS:
        return None
    given = given.reshape(error.shape).to(error.dtype)
    return given - error if edges(difference[0])[0] is not None else given + error
