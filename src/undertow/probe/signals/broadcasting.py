"""Were prediction and target of an elementwise loss stretched over each other?"""

import math
from collections import deque

import torch

from undertow.probe.signals.nodes import SAME_VALUES, Edge, Node, edges, is_leaf, only_edge, operation, shape_of
from undertow.probe.signals.terms import Term, constant_factor

_MOST_NODES = 64
# What losses of one's own are written with. A kernel compares all with all on purpose: exponentials are not passed.
_OF_ERRORS = SAME_VALUES | {
    "Mean", "Sum", "Add", "Sub", "Rsub", "Neg", "Mul", "Div", "Pow", "Abs", "Sqrt", "Log", "Log1P", "Cosh", "Softplus",
    "Where", "Maximum", "Minimum", "Clamp", "ClampMin", "ClampMax", "Relu", "LogSigmoid",
}  # fmt: skip


def was_broadcast(term: Term) -> float | None:
    """1 when the prediction was repeated to fit the target, as (N, 1) against (N) gives (N, N); None when unknown.

    A prediction or target of a single element, and a target that is repeated to fit the prediction, are left
    alone: users do that on purpose. So is a prediction of more than two dimensions to which the user has added one.
    """
    if term.given is None:
        return None
    # A difference stretches its sides by itself; loss functions stretch them before.
    inside = next((edge for edge in edges(term.node) if edge is not None), None) if term.by_hand else term.given
    given = term.given
    if operation(given[0]) == "Expand":
        given = only_edge(given[0])
    return None if inside is None or given is None else _grew(given, shape_of(inside))


def _grew(source: Edge, shape: tuple[int, ...] | None) -> float | None:
    before = shape_of(source)
    if before is None or shape is None:
        return None
    if math.prod(before) in (1, math.prod(shape)):
        return 0.0
    on_purpose = len(before) > 2 and not is_leaf(source[0]) and operation(source[0]) == "Unsqueeze"
    return 0.0 if on_purpose else 1.0


def stretched_column(root: torch.Tensor) -> Edge | None:
    """A prediction of shape (N, 1) that met a target of shape (N) somewhere in a loss of an unknown kind."""
    if root.grad_fn is None:
        return None
    waiting: deque[Edge] = deque([(root.grad_fn, int(root.output_nr))])
    seen: set[Node] = set()
    while waiting and len(seen) < _MOST_NODES:
        edge = waiting.popleft()
        node = edge[0]
        if node in seen or is_leaf(node) or operation(node) not in _OF_ERRORS:
            continue
        seen.add(node)
        inside = only_edge(node)
        if inside is not None and operation(node) in ("Sub", "Rsub", "Mul") and _is_stretched(node, inside, edge):
            return inside
        waiting += [one for one in edges(node) if one is not None]
    return None


def _is_stretched(node: Node, inside: Edge, edge: Edge) -> bool:
    before, after = shape_of(inside), shape_of(edge)
    if before is None or len(before) != 2 or before[0] < 2 or before[1] != 1 or after != (before[0], before[0]):
        return False
    factor = constant_factor(node) if operation(node) == "Mul" else None
    return not isinstance(factor, torch.Tensor) or factor.numel() == before[0]  # a mask of all pairs is meant
