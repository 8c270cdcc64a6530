"""Whether the activations around a parameter are alive, as far as its run shows them."""

from collections.abc import Mapping, Sequence

from undertow.schema import Layer, LayerGraph, LayerKind, LayerTable


def activity_around(
    graph: LayerGraph,
    table: LayerTable,
    layers: Sequence[Layer],
    shares: Mapping[str, float],
    calls: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Smallest share of live units of what a parameter's module receives, of its output and of what acts on it.

    `shares` and `calls` (how often it ran) are of modules. A layer is left out when nothing there is dead and no module
    without parameters, serving it alone, ran right behind it: a function that silences its output would not be seen.
    """
    if not shares:
        return {}
    behind = _acting_on(table, shares)
    path_of = {node.id: node.path for node in graph.nodes}
    before: dict[str, list[str]] = {}
    for source, target in graph.edges:
        before.setdefault(path_of[target], []).append(path_of[source])
    calls = calls or {}
    found: dict[str, float] = {}
    for layer in layers:
        acting = behind.get(layer.group, [])
        seen = [shares[path] for path in (layer.group, *acting) if path in shares]
        inputs = [shares.get((behind.get(path) or [path])[-1]) for path in before.get(layer.group, ())]
        known = [share for share in inputs if share is not None]
        # No input enters the gradient of a bias; for another one it takes a single live input.
        if layer.kind is not LayerKind.BIAS and known and len(known) == len(inputs):
            seen.append(max(known))
        alone = any(calls.get(path) == calls.get(layer.group) for path in acting)
        if seen and (alone or min(seen) <= 0):
            found[layer.path] = min(seen)
    return found


def _acting_on(table: LayerTable, shares: Mapping[str, float]) -> dict[str, list[str]]:
    """For every module with parameters, those without that ran after it and before the next one, in that order."""
    owners = {layer.group for layer in table if not layer.is_module}
    parents = {layer.path.rpartition(".")[0] for layer in table if layer.is_module}
    found: dict[str, list[str]] = {}
    acting: list[str] = []
    for layer in table.in_execution_order():
        if not layer.is_module or layer.path in parents:
            continue
        if layer.path in owners:
            acting = found[layer.path] = []
        elif layer.path in shares:
            acting.append(layer.path)
    return found
