"""Can a prediction reach its targets? Where a function of a known range comes last, nothing beyond it can be learnt."""

import math

import torch

from undertow.probe.signals.graph_values import first_rows
from undertow.probe.signals.handwritten_error import target_of
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


def reach_of(term: Term) -> Reach | None:
    """None where the prediction was made by anything else, or the targets cannot be seen."""
    limits = None
    if term.kind in (LossKind.BINARY_OF_LOGITS, LossKind.BINARY_OF_PROBABILITIES):
        limits = (0.0, 1.0)  # whatever made it: targets are probabilities here
    elif term.kind in (LossKind.MEAN_SQUARE, LossKind.ABSOLUTE):
        limits = _RANGES.get(term.given.producer().operation)
    targets = _targets(term) if limits is not None else None
    return None if limits is None or targets is None else (*limits, first_rows(targets, _MOST_ELEMENTS).clone())


def _targets(term: Term) -> torch.Tensor | None:
    if not term.by_hand:
        return term.value.tensor("target")
    # Written out by hand only the error is kept, and what the last function put out: the rest is arithmetic.
    given, error = term.given.producer().tensor("result"), term.value.tensor("self")
    if given is None or error is None or given.numel() != error.numel() or error.numel() > _MOST_ELEMENTS:
        return None
    return target_of(term, given.reshape(error.shape).to(error.dtype), error)
