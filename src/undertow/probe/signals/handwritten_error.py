"""Predictions and targets of an error that is written out by hand, of which the graph keeps the difference only."""

import math

import torch

from undertow.probe.signals.nodes import (
    Edge,
    edges,
    is_leaf,
    operation,
    parameter_at,
    producer,
    saved_tensor,
    shape_of,
)
from undertow.probe.signals.terms import Term

_ROWS = 64
_MOST_COLUMNS = 16
_MOST_PRODUCTS = 1 << 16  # multiplications
# Views that leave rows where they are.
_IN_ORDER = frozenset({"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias"}) | {
    "Select"  # of the only column there is
}
_KEEPS_RESULT = frozenset({"Tanh", "Sigmoid", "Exp"})


def remade(term: Term) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Leading rows of the prediction, as a linear layer or a last function made it, and of the target."""
    error = saved_tensor(term.node, "self")
    difference = next((one for one in edges(term.node) if one is not None), None)
    if error is None or difference is None or operation(difference[0]) != "Sub" or not error.dim():
        return None
    made_by = producer(term.given, _IN_ORDER)
    if made_by is None or math.prod(shape_of(made_by) or ()) != error.numel():
        return None  # a part of what was made, or repeated
    given = _values(made_by)
    if given is None or not len(given) or error.numel() % given[0].numel():
        return None
    some = min(len(given), error.numel() // given[0].numel())
    given = given[:some].to(error.dtype)
    error = error.reshape(-1)[: given.numel()].reshape(given.shape)
    return given, given - error if edges(difference[0])[0] is not None else given + error


def _values(made_by: Edge) -> torch.Tensor | None:
    if is_leaf(made_by[0]):
        return None
    node, bias = made_by[0], None
    if operation(node) in _KEEPS_RESULT:
        result = saved_tensor(node, "result")
        if result is None or not result.dim():
            return None
        rows = result.reshape(result.shape[0], -1)
        return rows[:_ROWS] if rows.shape[1] <= _MOST_COLUMNS else None
    has_bias = operation(node) in ("Addmm", "Add")
    if has_bias:
        bias = parameter_at(node, 0 if operation(node) == "Addmm" else 1)
    if operation(node) == "Add":  # a linear layer of more than two dimensions: a product, then the bias
        product = producer(edges(node)[0], _IN_ORDER)
        node = product[0] if product is not None else node
    name = "" if is_leaf(node) else operation(node)
    inputs = saved_tensor(node, {"Addmm": "mat1", "Mm": "self"}.get(name, ""))
    weight = parameter_at(node, 2 if name == "Addmm" else 1)
    if inputs is None or inputs.dim() != 2 or weight is None or weight.dim() != 2 or len(weight) > _MOST_COLUMNS:
        return None
    if inputs.shape[1] != weight.shape[1] or (has_bias and (bias is None or bias.shape != weight.shape[:1])):
        return None
    if _ROWS * weight.numel() > _MOST_PRODUCTS:
        return None
    made = inputs[:_ROWS].float() @ weight.t().float()
    return made if bias is None else made + bias.float()
