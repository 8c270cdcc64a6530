"""The narrowest place in the executed graph that explains the others: what all ways lead through."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from undertow.schema import Evidence, Finding, GraphSource, LayerGraph, LayerTable

PLACE = "place"  # what evidence of a place has in place of a quantity
# Damage in a forward pass spreads towards the loss, damage in a backward pass away from it.
_SPREADS_FORWARD = frozenset({"ACT001", "ACT002", "ACT003", "NUM004"})
_SPREADS_BACKWARD = frozenset({"GRD001", "GRD003", "GRD004", "NUM001"})
# Their rules do not look at the graph, so a layer that explains the others may come first.
_UNPLACED = frozenset({"ACT002", "ACT003", "NUM004"})
# What a loss does after steps that were too large, whatever made them.
_BY_STEPS = frozenset({"OPT001", "OPT003", "GRD002", "GRD006", "UPD001"})
_START = -1


def located(finding: Finding, layers: LayerTable, graph: LayerGraph) -> Finding:
    """The finding with the place that explains its layers, if there is one and it is not obvious."""
    if finding.code in _BY_STEPS and finding.severity.is_alarm and not finding.layers:
        return _among_trained(finding, layers)
    forward = finding.code in _SPREADS_FORWARD
    if not (forward or finding.code in _SPREADS_BACKWARD) or not finding.severity.is_alarm:
        return finding
    groups = dict.fromkeys(_owner(path, layers) for path in finding.layers)
    if len(groups) < 2:
        return finding
    gate = common_gate(groups, graph, toward_loss=not forward)
    if gate is None or (gate in groups and gate == next(iter(groups))):
        return finding
    to = "to the loss" if not forward else "from the input"
    how = f"every way {to} of {len(groups):,} modules leads through it"
    evidence = (*finding.evidence, Evidence(PLACE, gate, None, None, how))
    if gate not in groups or finding.code not in _UNPLACED:
        return replace(finding, evidence=evidence)
    first = [path for path in finding.layers if _owner(path, layers) == gate]
    rest = [path for path in finding.layers if path not in first]
    return replace(finding, layers=(*first, *rest), evidence=evidence)


def _among_trained(finding: Finding, layers: LayerTable) -> Finding:
    """Where most of a model is frozen, as under adapters, only what is trained can have made it worse."""
    trained = [layer for layer in layers.parameters if layer.trainable]
    moving = sum(layer.parameter_count for layer in trained)
    if not 0 < 2 * moving < sum(layer.parameter_count for layer in layers.parameters):
        return finding
    how = f"all other parameters are frozen: {moving:,} of them are trained"
    evidence = (*finding.evidence, Evidence(PLACE, trained[0].path, None, None, how))
    return replace(finding, layers=tuple(layer.path for layer in trained), evidence=evidence)


def common_gate(modules: Iterable[str], graph: LayerGraph, *, toward_loss: bool) -> str | None:
    """The module nearest to the given ones through which all ways from the input (or to the loss) lead.

    It can be one of them: then it explains the others. None where the graph is only a guess or has no such place.
    """
    wanted = set(modules)
    starts = [node.id for node in graph.nodes if not node.is_merge and node.path in wanted]
    if graph.source is not GraphSource.AUTOGRAD or len(starts) < 2:
        return None
    above = _dominators(graph, toward_loss)
    if any(node not in above for node in starts):
        return None  # no way leads there: the graph is not whole
    chain = [starts[0]]  # all that the first one depends on, nearest first
    while above[chain[-1]] != _START:
        chain.append(above[chain[-1]])
    met = {node: place for place, node in enumerate(chain)}  # where in the chain the way from a node arrives
    last = 0
    for node in starts[1:]:
        way: list[int] = []
        while node not in met:
            way.append(node)
            node = above[node]
            if node == _START:
                return None
        met.update(dict.fromkeys(way, met[node]))
        last = max(last, met[node])
    named = {node.id: node.path for node in graph.nodes if not node.is_merge and node.path}
    return next((named[node] for node in chain[last:] if node in named), None)


def _dominators(graph: LayerGraph, toward_loss: bool) -> dict[int, int]:
    """Of every node the nearest one that all ways to it lead through."""
    import networkx

    library: Any = networkx  # it has no types worth having
    edges = [(target, source) if toward_loss else (source, target) for source, target in graph.edges]
    entered = {target for _, target in edges}
    flow = library.DiGraph()
    flow.add_edges_from(edges)
    flow.add_edges_from((_START, node.id) for node in graph.nodes if node.id not in entered)
    return dict(library.immediate_dominators(flow, _START))


def _owner(path: str, layers: LayerTable) -> str:
    layer = layers.get(path)
    return path if layer is None or layer.is_module else layer.group
