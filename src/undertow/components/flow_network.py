"""The network as gradient sees it: nodes by their place and gain, edges by what gets across, paths by their share."""

from dataclasses import dataclass

import numpy as np

from undertow.analyze.gains import EdgeGains, edge_gains
from undertow.analyze.layer_numbers import LayerNumbers
from undertow.analyze.paths import FlowShares, Path, flow_shares, log_gains, strongest_paths
from undertow.analyze.series import Flags, Floats, LayerSeries
from undertow.analyze.topology import Topology
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
NO_GRAPH = Missing("no graph was given")
UNMEASURED = Missing("no step at which both ends were finite and the consumer's gradient was not zero")


@dataclass(frozen=True, slots=True)
class NetworkFlow:
    """Everything measured along edges; one entry per layer, NaN where it has no say."""

    topology: Topology
    edges: EdgeGains
    gain: Floats
    bottleneck_score: Floats
    shares: FlowShares
    paths: list[Path]
    log_gain: dict[tuple[int, int], float]


def dead_layers(series: LayerSeries) -> Flags:
    """Below 1e-8 in each of the newest ten samples (in all of them when there are fewer, but at least three)."""
    current = runs_of(dead_flags(series), series).current
    return (series.counts >= 3) & (current >= np.minimum(DEAD_RUN, series.counts))


def network_flow(series: LayerSeries, topology: Topology, window: int) -> NetworkFlow:
    edges = edge_gains(series, topology, window)
    gain = np.full(len(series.names), np.nan)
    for (start, _), value in zip(topology.edges, edges.gain):
        gain[start] = np.fmax(gain[start], value)  # the widest way in
    weights = log_gains(topology, edges.gain)
    shares = flow_shares(topology, weights)
    reference = np.minimum(1.0, _median_of_others(gain))
    with np.errstate(over="ignore"):
        score = shares.node * (1 - np.minimum(1.0, gain / np.where(reference > 0, reference, 1.0)))
    return NetworkFlow(topology, edges, gain, score, shares, strongest_paths(topology, weights), weights)


def _median_of_others(values: Floats) -> Floats:
    """For every entry, the median of the other known ones; 1 where there are none."""
    known = np.flatnonzero(~np.isnan(values))
    result = np.ones(len(values))
    if len(known) < 2:
        return result
    order = np.sort(values[known])
    rank = np.searchsorted(order, values[known])
    low, high = (len(order) - 2) // 2, (len(order) - 1) // 2
    without = [order[place + (place >= rank)] for place in (low, high)]
    result[known] = (without[0] + without[1]) / 2
    return result


def build_network(
    series: LayerSeries, numbers: LayerNumbers, flow: NetworkFlow | None, flow_threshold: float, types: list[NodeType]
) -> GradientFlowNetwork:
    order = flow.topology.order if flow else range(len(series.names))
    nodes = [_node(series.names[layer], layer, types[layer], numbers, flow) for layer in order]
    if flow is None:
        return GradientFlowNetwork(nodes, [], record_of(NetworkMetrics, otherwise=NO_GRAPH))
    return GradientFlowNetwork(nodes, _edges(series, flow, flow_threshold), _metrics(flow, types))


def node_types(
    dead: Flags, flow: NetworkFlow | None, *, bottlenecks: bool = True, amplifiers: bool = True
) -> list[NodeType]:
    """First match: dead, bottleneck, amplifier, source, sink. Without a graph only dead layers stand out."""
    types = [NodeType.DEAD if gone else NodeType.NORMAL for gone in dead]
    if flow is None:
        return types
    for layer, kind in enumerate(types):
        feeds, fed = flow.topology.feeds[layer], flow.topology.fed_by[layer]
        if kind is NodeType.DEAD or not (feeds or fed):
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
        gain=known(flow.gain[layer], UNMEASURED if feeds else "the layer feeds no measured layer"),
        flow_share=known(flow.shares.node[layer], UNMEASURED),
    )


def _edges(series: LayerSeries, flow: NetworkFlow, threshold: float) -> list[FlowEdge]:
    """All edges that show a problem, and the strong ones with at least the wanted gain."""
    edges: list[FlowEdge] = []
    gains, kinds = flow.edges, _edge_types(flow.edges)
    for place, (start, end) in enumerate(flow.topology.edges):
        kind, gain = kinds[place], gains.gain[place]
        if kind is EdgeType.STRONG and gain < threshold:
            continue
        rarely = UNMEASURED if np.isnan(gain) else "fewer than two neighbouring steps with a gain"
        edges.append(
            record_of(
                FlowEdge,
                from_layer=series.names[start],
                to_layer=series.names[end],
                flow_strength=known(gain, UNMEASURED),
                flow_consistency=known(gains.consistency[place], rarely),
                edge_type=kind or UNMEASURED,
                blocked_share=known(gains.blocked_share[place], UNMEASURED),
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
    losses = [min(0.0, flow.log_gain[edge]) for edge, gain in zip(flow.topology.edges, flow.edges.gain) if gain >= 0]
    consistencies = flow.edges.consistency[~np.isnan(flow.edges.consistency)]
    stability = float(consistencies.mean()) if len(consistencies) else Missing("no edge with two measured gains")
    speed = gain = Missing("no path")
    if flow.paths:
        best = flow.paths[0]
        speed, gain = _exponential(best.log_gain / (len(best.nodes) - 1)), _exponential(best.log_gain)
    return record_of(
        NetworkMetrics,
        overall_flow_efficiency=float(np.exp(np.mean(losses))) if losses else Missing("no edge with a measured gain"),
        network_connectivity=edges / (count * (count - 1)) if count > 1 else 0.0,
        bottleneck_density=types.count(NodeType.BOTTLENECK) / count if count else Missing("there are no layers"),
        flow_stability=stability,
        information_propagation_speed=speed,
        loss_to_input_gain=gain,
    )


def critical_paths(names: tuple[str, ...], flow: NetworkFlow, types: list[NodeType]) -> list[CriticalGradientPath]:
    """The strongest ways from loss to input; the potential is what the weakest edge withholds, 0 … 1."""
    passing = list(flow.log_gain.values())
    middle = float(np.median(passing)) if passing else 0.0
    return [
        CriticalGradientPath(
            path_id="main_path" if place == 0 else f"path_{place + 1}",
            layers=[names[node] for node in path.nodes],
            path_length=len(path.nodes),
            total_flow_strength=_exponential(path.log_gain),
            bottleneck_layers=[names[node] for node in path.nodes if types[node] is NodeType.BOTTLENECK],
            criticality_score=path.share,
            optimization_potential=1 - float(np.exp(min(0.0, path.worst_log_gain - middle))),
            weakest_edge=(names[path.weakest[0]], names[path.weakest[1]]) if path.weakest else None,
        )
        for place, path in enumerate(flow.paths)
    ]


def _exponential(logarithm: float) -> float:
    """Products of a thousand gains can leave the range of numbers; the largest one stands for them."""
    return float(np.exp(min(709.0, logarithm)))
