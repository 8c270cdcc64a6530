"""Which parameter stands nearest to a loss function: that of the layer whose output it was given."""

from __future__ import annotations

from collections import deque
from typing import Any

from undertow.probe.signals.nodes import Edge, edges, is_leaf

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
