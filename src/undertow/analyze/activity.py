"""Whether the activations around a parameter are alive, as far as its run shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from undertow.schema.graph import LayerGraph
from undertow.schema.layers import Layer, LayerKind, LayerTable


def activity_around(
    graph: LayerGraph, table: LayerTable, layers: Sequence[Layer], shares: Mapping[str, float]
) -> dict[str, float]:
    """Smallest share of live units of what a parameter's module receives, of its output and of the module behind it.

    A layer is left out when nothing there is dead and no module without parameters, serving it alone, stands behind
    it: a function that silences its output would not be seen.
    """
    if not shares:
        return {}
    node_of = {node.path: node.id for node in graph.nodes}
    path_of = {node.id: node.path for node in graph.nodes}
    before: dict[int, list[int]] = {}
    behind: dict[int, list[int]] = {}
    for source, target in graph.edges:
        before.setdefault(target, []).append(source)
        behind.setdefault(source, []).append(target)
    owners = {layer.group for layer in table if not layer.is_module}
    found: dict[str, float] = {}
    for layer in layers:
        node = node_of.get(layer.group, -1)
        following = [other for other in behind.get(node, ()) if path_of[other] not in owners]
        inputs = [] if layer.kind is LayerKind.BIAS else before.get(node, ())  # no input enters a bias's gradient
        near = [layer.group, *(path_of[other] for other in (*inputs, *following))]
        seen = [shares[path] for path in near if path in shares]
        certain = any(path_of[other] in shares and len(before[other]) == 1 for other in following)
        if seen and (certain or min(seen) <= 0):
            found[layer.path] = min(seen)
    return found
