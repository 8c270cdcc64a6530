"""Predictions and targets of an error that is written out by hand, of which the graph keeps the difference only."""

import math

import torch

from undertow.probe.signals.graph_values import NOTHING, Value
from undertow.probe.signals.linear_layer import linear_layer
from undertow.probe.signals.terms import Term

_ROWS = 64
_MOST_COLUMNS = 16
_MOST_PRODUCTS = 1 << 16  # multiplications
# Views that leave rows where they are; `Select` of the only column there is.
_IN_ORDER = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias", "Select",
})  # fmt: skip


def target_of(term: Term, given: torch.Tensor, error: torch.Tensor) -> torch.Tensor | None:
    """What this prediction was compared with, by their difference."""
    difference = next(iter(term.value.inputs), NOTHING)
    if difference.operation != "Sub":
        return None
    return given - error if difference.side(0) else given + error


def remade(term: Term) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Leading rows of the prediction, as a linear layer or a last function made it, and of the target."""
    error, made = term.value.tensor("self"), term.given.producer(_IN_ORDER)
    if error is None or not error.dim() or math.prod(made.shape or ()) != error.numel():
        return None  # a part of what was made, or repeated
    given = _values(made)
    if given is None or not len(given) or error.numel() % given[0].numel():
        return None
    given = given[: error.numel() // given[0].numel()].to(error.dtype)
    target = target_of(term, given, error.reshape(-1)[: given.numel()].reshape(given.shape))
    return None if target is None else (given, target)


def _values(made: Value) -> torch.Tensor | None:
    if made.operation in ("Tanh", "Sigmoid", "Exp"):
        result = made.tensor("result")
        if result is None or not result.dim():
            return None
        rows = result.reshape(result.shape[0], -1)
        return rows[:_ROWS].clone() if rows.shape[1] <= _MOST_COLUMNS else None
    layer = linear_layer(made, _IN_ORDER)
    if layer is None or len(layer.weight) > _MOST_COLUMNS or _ROWS * layer.weight.numel() > _MOST_PRODUCTS:
        return None
    if layer.bias is not None and len(layer.bias) != len(layer.weight):
        return None
    values = layer.inputs[:_ROWS].float() @ layer.weight.t().float()
    return values if layer.bias is None else values + layer.bias.float()
