"""The network as gradient sees it: nodes by their place and gain, edges by what gets across, paths by their share."""

import numpy as np

from undertow.analyze.gains import EdgeGains
from undertow.analyze.layer_numbers import LayerNumbers
from undertow.analyze.paths import Path
from undertow.analyze.series import Flags, LayerSeries
from undertow.components.network_flow import NO_GAIN, NO_GRAPH, NetworkFlow
from undertow.components.regions import dead_flags, runs_of
from undertow.schema.reasons import Missing, known, record_of
from undertow.schema.seeds.flow_records import (
    CriticalGradientPath,
    EdgeType,
    FlowEdge,
    FlowNode,
    GradientFlowNetwork,
    NetworkMetrics,
    NodeType,
)

BOTTLENECK_SCORE = 0.8
AMPLIFYING_GAIN = 10.0
BLOCKED_SHARE = 0.9
OPEN_SHARE = 0.1
WEAK_GAIN = 0.01
DEAD_RUN = 10  # samples, or all of them when there are fewer


def dead_layers(series: LayerSeries) -> Flags:
    """Below 1e-8 in each of the newest ten samples (in all of them when there are fewer, but at least three)."""
    current = runs_of(dead_flags(series), series).current
    return (series.counts >= 3) & (current >= np.minimum(DEAD_RUN, series.counts))


def build_network(
    series: LayerSeries, numbers: LayerNumbers, flow: NetworkFlow | None, flow_threshold: float, types: list[NodeType]
) -> GradientFlowNetwork:
    order = flow.topology.order if flow else range(len(series.names))
    nodes = [_node(series.names[layer], layer, types[layer], numbers, flow) for layer in order]
    if flow is None:
        return GradientFlowNetwork(nodes, [], record_of(NetworkMetrics, otherwise=NO_GRAPH))
    return GradientFlowNetwork(nodes, _edges(series, flow, flow_threshold), _metrics(flow, types))


def nonfinite_layers(series: LayerSeries) -> Flags:
    """Those whose newest sample is NaN or infinite."""
    found = np.zeros(len(series.names), bool)
    for layer in np.flatnonzero((series.recorded & ~np.isfinite(series.values)).any(axis=0)):
        newest = np.flatnonzero(series.recorded[:, layer])[-1]
        found[layer] = not np.isfinite(series.values[newest, layer])
    return found


def node_types(
    series: LayerSeries, dead: Flags, flow: NetworkFlow | None, *, bottlenecks: bool = True, amplifiers: bool = True
) -> list[NodeType]:
    """First match: not finite, dead, bottleneck, amplifier, source, sink. Without a graph only the first two."""
    bad = nonfinite_layers(series)
    types = [
        NodeType.NON_FINITE if wrong else NodeType.DEAD if gone else NodeType.NORMAL for wrong, gone in zip(bad, dead)
    ]
    if flow is None:
        return types
    for layer, kind in enumerate(types):
        feeds, fed = flow.topology.feeds[layer], flow.topology.fed_by[layer]
        if kind is not NodeType.NORMAL or not (feeds or fed):
            continue
        if bottlenecks and flow.bottleneck_score[layer] > BOTTLENECK_SCORE:
            types[layer] = NodeType.BOTTLENECK
        elif amplifiers and flow.gain[layer] >= AMPLIFYING_GAIN:
            types[layer] = NodeType.AMPLIFIER
        elif not fed:
            types[layer] = NodeType.SOURCE
        elif not feeds:
            types[layer] = NodeType.SINK
    return types


def _node(name: str, layer: int, kind: NodeType, numbers: LayerNumbers, flow: NetworkFlow | None) -> FlowNode:
    strength = known(numbers.mean[layer], "no finite sample")
    influence = known(numbers.mean[layer] * numbers.consistency[layer], "flow_consistency is not available")
    if flow is None:
        return record_of(FlowNode, layer_name=name, node_type=kind, gradient_strength=strength,
                         influence_score=influence, otherwise=NO_GRAPH)  # fmt: skip
    feeds, fed_by = flow.topology.feeds[layer], flow.topology.fed_by[layer]
    return record_of(
        FlowNode,
        layer_name=name,
        node_type=kind,
        gradient_strength=strength,
        connectivity=len(feeds) + len(fed_by),
        influence_score=influence,
        gain=known(flow.gain[layer], _no_gain(flow, layer)) if feeds else Missing("the layer feeds no measured layer"),
        flow_share=known(
            flow.passing[layer], flow.unmeasured if feeds or fed_by else "the graph leads nowhere from here"
        ),
        bottleneck_score=known(flow.bottleneck_score[layer], no_score(flow, layer)),
    )


def no_score(flow: NetworkFlow, layer: int) -> str:
    if not flow.topology.feeds[layer]:
        return "the layer feeds no measured layer"
    return _no_gain(flow, layer) if np.isnan(flow.gain[layer]) else flow.unmeasured


def _no_gain(flow: NetworkFlow, layer: int) -> str:
    several = [user for user in flow.topology.feeds[layer] if (layer, user) not in flow.shares.sizes]
    return flow.unmeasured if several else NO_GAIN


def _edges(series: LayerSeries, flow: NetworkFlow, threshold: float) -> list[FlowEdge]:
    """All edges that show a problem, and the strong ones with at least the wanted gain."""
    edges: list[FlowEdge] = []
    gains, kinds = flow.edges, _edge_types(flow.edges)
    for place, (start, end) in enumerate(flow.topology.edges):
        kind, gain = kinds[place], gains.gain[place]
        if kind is EdgeType.STRONG and gain < threshold:
            continue
        never = NO_GAIN if (start, end) in flow.shares.sizes else flow.unmeasured
        rarely = "fewer than two neighbouring steps with a gain"
        edges.append(
            record_of(
                FlowEdge,
                from_layer=series.names[start],
                to_layer=series.names[end],
                flow_strength=known(gain, never),
                flow_consistency=known(gains.consistency[place], rarely),
                edge_type=kind or Missing(never),
                blocked_share=known(gains.blocked_share[place], NO_GAIN),
                flow_share=known(flow.shares.edges.get((start, end), np.nan), flow.unmeasured),
            )
        )
    return edges


def _edge_types(edges: EdgeGains) -> list[EdgeType | None]:
    """Blocked and intermittent from how often nothing passes; strong and weak from the gain and its quantiles.

    An edge that has opened is not blocked any more: a branch whose last scale starts at zero opens with the first step.
    """
    gain, blocked = edges.gain, edges.blocked_share
    passing = gain[np.isfinite(gain) & (blocked <= OPEN_SHARE)]
    quarter, middle = np.quantile(passing, (0.25, 0.5)) if len(passing) else (0.0, 0.0)
    kinds: list[EdgeType | None] = []
    for value, share, turns, shut in zip(gain, blocked, edges.switches, edges.blocked_now):
        if np.isnan(value):
            kinds.append(None)
        elif OPEN_SHARE < share < BLOCKED_SHARE and turns >= 2:
            kinds.append(EdgeType.INTERMITTENT)
        elif share >= 0.5 and shut:
            kinds.append(EdgeType.BLOCKED)
        elif value < WEAK_GAIN or (value < quarter and value < middle / 2):
            kinds.append(EdgeType.WEAK)
        else:
            kinds.append(EdgeType.STRONG)
    return kinds


def _metrics(flow: NetworkFlow, types: list[NodeType]) -> NetworkMetrics:
    count, edges = len(types), len(flow.topology.edges)
    losses = [min(0.0, gain) for gain in flow.log_gain.values()]
    consistencies = flow.edges.consistency[~np.isnan(flow.edges.consistency)]
    stability = float(consistencies.mean()) if len(consistencies) else Missing("no edge with two measured gains")
    speed = gain = Missing(flow.unmeasured if edges else "no path")
    if flow.main_path is not None:
        logarithm = _log_gain(flow, flow.main_path)
        speed = gain = Missing("an edge of the main path has no gain: " + NO_GAIN)
        if logarithm is not None:
            speed, gain = _exponential(logarithm / len(flow.main_path.edges)), _exponential(logarithm)
    return record_of(
        NetworkMetrics,
        overall_flow_efficiency=float(np.exp(np.mean(losses))) if losses else Missing("no edge with a measured gain"),
        network_connectivity=edges / (count * (count - 1)) if count > 1 else 0.0,
        bottleneck_density=types.count(NodeType.BOTTLENECK) / count if count else Missing("there are no layers"),
        flow_stability=stability,
        information_propagation_speed=speed,
        loss_to_input_gain=gain,
    )


def _log_gain(flow: NetworkFlow, path: Path) -> float | None:
    """Of the whole way; None where a part of it was not measured."""
    known_ones = [flow.log_gain[edge] for edge in path.edges if edge in flow.log_gain]
    return sum(known_ones) if len(known_ones) == len(path.edges) else None


def critical_paths(names: tuple[str, ...], flow: NetworkFlow, types: list[NodeType]) -> list[CriticalGradientPath]:
    """The ways from loss to input that carry most; the potential is what the weakest edge withholds, 0 … 1."""
    passing = list(flow.log_gain.values())
    middle = float(np.median(passing)) if passing else 0.0
    found: list[CriticalGradientPath] = []
    for place, path in enumerate(flow.paths):
        measured = [edge for edge in path.edges if edge in flow.log_gain]
        weakest = min(measured, key=lambda edge: flow.log_gain[edge], default=None)
        logarithm = _log_gain(flow, path)
        found.append(
            record_of(
                CriticalGradientPath,
                path_id="main_path" if place == 0 else f"path_{place + 1}",
                layers=[names[node] for node in path.nodes],
                path_length=len(path.nodes),
                total_flow_strength=Missing(NO_GAIN) if logarithm is None else _exponential(logarithm),
                bottleneck_layers=[names[node] for node in path.nodes if types[node] is NodeType.BOTTLENECK],
                criticality_score=path.share,
                optimization_potential=Missing(NO_GAIN)
                if weakest is None
                else 1 - float(np.exp(min(0.0, flow.log_gain[weakest] - middle))),
                weakest_edge=Missing(NO_GAIN) if weakest is None else (names[weakest[0]], names[weakest[1]]),
            )
        )
    return found


def _exponential(logarithm: float) -> float:
    """Products of a thousand gains can leave the range of numbers; the largest one stands for them."""
    return float(np.exp(min(709.0, logarithm)))
