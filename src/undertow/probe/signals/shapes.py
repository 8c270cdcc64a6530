"""Were prediction and target of an elementwise loss stretched over each other?"""

from __future__ import annotations

import math

from undertow.probe.signals.nodes import Edge, edges, is_leaf, only_edge, operation, shape_of
from undertow.probe.signals.terms import Term


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
