"""Were prediction and target of an elementwise loss stretched over each other?"""

import math
from collections import deque

import torch

from undertow.probe.signals.graph_values import NOTHING, SAME_VALUES, Node, Value, value_of
from undertow.probe.signals.terms import Term

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
    # A difference stretches its sides by itself; loss functions stretch them before.
    stretched = next(iter(term.value.inputs), NOTHING) if term.by_hand else term.given
    given = term.given.only if term.given.operation == "Expand" else term.given
    before, after = given.shape, stretched.shape
    if before is None or after is None:
        return None
    on_purpose = len(before) > 2 and given.operation == "Unsqueeze"
    return 0.0 if on_purpose or math.prod(before) in (1, math.prod(after)) else 1.0


def stretched_column(root: torch.Tensor) -> Value | None:
    """A prediction of shape (N, 1) that met a target of shape (N) somewhere in a loss of an unknown kind."""
    waiting = deque([value_of(root)])
    seen: set[Node] = set()
    while waiting and len(seen) < _MOST_NODES:
        value = waiting.popleft()
        if value.node in seen or value.operation not in _OF_ERRORS:
            continue
        seen.add(value.node)
        if value.operation in ("Sub", "Rsub", "Mul") and value.only and _is_stretched(value):
            return value.only
        waiting += value.inputs
    return None


def _is_stretched(value: Value) -> bool:
    before, after = value.only.shape, value.shape
    if before is None or len(before) != 2 or before[0] < 2 or before[1] != 1 or after != (before[0], before[0]):
        return False
    factor = value.factor if value.operation == "Mul" else None
    return not isinstance(factor, torch.Tensor) or factor.numel() == before[0]  # a mask of all pairs is meant
