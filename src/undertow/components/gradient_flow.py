"""Gradient flow of a whole network from (steps × layers) norms."""

from collections.abc import Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.gradient_shares import GradientShares
from undertow.analyze.layer_numbers import LayerNumbers, layer_numbers
from undertow.analyze.series import Floats, LayerSeries
from undertow.analyze.topology import Topology
from undertow.components.flow_network import build_network, critical_paths, dead_layers, no_score, node_types
from undertow.components.network_flow import NO_GRAPH, NetworkFlow, network_flow
from undertow.components.norm_direction import KINDS, recent_directions
from undertow.components.problem_regions import dead_zones, diagnosed_dead_zones, diagnosed_regions, problem_regions
from undertow.components.run_verdicts import EXPLODING, LOSING, RunVerdicts
from undertow.schema import seeds
from undertow.schema.reasons import Missing, known, number_or_none, record_of

UNDIRECTED = "fewer than three finite, positive samples in a row, or too few to tell swings from noise"
NO_DIRECTIONS = "norms alone have no direction: give cosines of successive gradients, or sketches"


def gradient_flow(
    series: LayerSeries,
    config: seeds.GradientVisualizationConfig | None = None,
    *,
    current_step: int | None = None,
    topology: Topology | None = None,
    node_series: LayerSeries | None = None,
    region_topology: Topology | None = None,
    cosines: NDArray[np.floating] | None = None,
    sketches: dict[str, dict[int, Floats]] | None = None,
    unit_activity: Mapping[str, float] | None = None,
    run_verdicts: RunVerdicts | None = None,
    shares: GradientShares | None = None,
    unmeasured: str = "",
    owners: Mapping[str, str] | None = None,
) -> seeds.GradientFlowVisualization:
    """The flow visualization of the layers of `series`.

    `topology` joins the layers of `node_series` when that is given (modules, say), else those of `series`;
    `region_topology` joins the layers of `series` into regions.
    `cosines` (steps × layers) and `sketches` (name → position of the sample → vector) give directions.
    `unit_activity` (share of live units, by name) tells whether a dead gradient can come back.
    `run_verdicts` are those of a run's diagnosis; without them the original's limits decide.
    `shares` are those along the edges of the topology; `unmeasured` says why some are not there.
    `owners` (layer → node) says whose score is that of a layer, where nodes are no layers.
    """
    config = config or seeds.GradientVisualizationConfig()
    numbers = layer_numbers(series)
    nodes = series if node_series is None else node_series
    node_numbers = numbers if node_series is None else layer_numbers(nodes)
    flow = None if topology is None else network_flow(nodes, topology, config.temporal_window, shares, unmeasured)
    if node_series is None and region_topology is None:
        region_topology = topology
    window = config.temporal_window
    if run_verdicts is None:
        types = node_types(nodes, dead_layers(nodes), flow)
    else:
        dead = np.array([run_verdicts.is_dead(name, series.names) for name in nodes.names], bool)
        loses, grows = run_verdicts.says(LOSING), run_verdicts.says(EXPLODING)
        types = node_types(nodes, dead, flow, bottlenecks=loses, amplifiers=grows)
    vanishing: list[seeds.VanishingRegion] = []
    exploding: list[seeds.ExplodingRegion] = []
    zones: list[seeds.GradientDeadZone] = []
    if config.show_problem_regions and run_verdicts is not None:
        vanishing, exploding = diagnosed_regions(series, run_verdicts)
        zones = diagnosed_dead_zones(series, window, run_verdicts, unit_activity)
    elif config.show_problem_regions:
        vanishing, exploding = problem_regions(series, window, current_step, region_topology)
        zones = dead_zones(series, window, current_step, unit_activity)
    return seeds.GradientFlowVisualization(
        layer_flows=_layer_flows(series, numbers, flow, _places(series, nodes, owners), cosines, sketches),
        temporal_flows=_temporal_flows(series, window) if config.show_temporal_flows else [],
        flow_network=build_network(nodes, node_numbers, flow, config.flow_threshold, types),
        critical_paths=critical_paths(nodes.names, flow, types) if flow and config.show_critical_paths else [],
        vanishing_regions=vanishing,
        exploding_regions=exploding,
        dead_zones=zones,
        visualization_config=config,
        nonfinite_layers=_nonfinite_layers(series, region_topology),
        unavailable=_unavailable(flow),
    )


def _unavailable(flow: NetworkFlow | None) -> dict[str, str]:
    if flow is None:
        return dict.fromkeys(("edges", "critical_paths"), str(NO_GRAPH))
    return {"critical_paths": flow.unmeasured} if np.isnan(flow.passing).any() else {}


def _places(series: LayerSeries, nodes: LayerSeries, owners: Mapping[str, str] | None) -> list[int | None]:
    """Of each layer its place among the nodes."""
    return [nodes.index.get(name if owners is None else owners.get(name, name)) for name in series.names]


def _layer_flows(
    series: LayerSeries,
    numbers: LayerNumbers,
    flow: NetworkFlow | None,
    places: list[int | None],
    cosines: NDArray[np.floating] | None,
    sketches: dict[str, dict[int, Floats]] | None,
) -> dict[str, seeds.GradientLayerFlow]:
    own = flow is not None and flow.topology.names == series.names
    order = flow.topology.order if flow is not None and own else range(len(series.names))
    flows: dict[str, seeds.GradientLayerFlow] = {}
    for layer in order:
        name = series.names[layer]
        steps, values = series.column(layer)
        cosine = None if cosines is None else cosines[series.recorded[:, layer], layer].astype(np.float64)
        sketched = (sketches or {}).get(name)
        bad = np.flatnonzero(~np.isfinite(values))
        spoilt = f"{len(bad)} samples are not finite" if len(values) else "no samples"
        incomparable = spoilt if len(bad) or not len(values) else "no two neighbouring samples that can be compared"
        node, score = places[layer], NO_GRAPH
        if flow is not None and node is None:
            score = Missing("its module is not in the graph")
        elif flow is not None and node is not None:
            score = known(flow.bottleneck_score[node], no_score(flow, node))
        flows[name] = record_of(
            seeds.GradientLayerFlow,
            layer_name=name,
            gradient_magnitudes=values.tolist(),
            gradient_directions=seeds.GradientDirections(steps, values, cosine, sketched),
            flow_consistency=known(numbers.consistency[layer], incomparable),
            bottleneck_score=score,
            information_flow_rate=known(numbers.flow_rate[layer], spoilt),
            nonfinite_count=len(bad),
            first_nonfinite_step=int(steps[bad[0]]) if len(bad) else Missing("every sample is finite"),
            unavailable={} if cosine is not None or sketched is not None else {"gradient_directions": NO_DIRECTIONS},
        )
    return flows


@cache
def _undirected(without_direction: bool, without_stability: bool) -> dict[str, str]:
    """One and the same for all samples alike: there are many."""
    missing = {"flow_direction": without_direction, "stability_score": without_stability}
    return {name: UNDIRECTED for name, is_missing in missing.items() if is_missing}


def _temporal_flows(series: LayerSeries, window: int) -> list[seeds.TemporalGradientFlow]:
    """The newest `window` samples of every layer, by step, then by layer."""
    directions = recent_directions(series.samples, window)
    rows, columns = directions.kind.shape
    values, steps = series.samples[len(series.samples) - rows :], series.sample_steps[len(series.samples) - rows :]
    kinds: tuple[seeds.FlowDirection | None, ...] = (*KINDS, None)  # −1 picks the last
    flows = [
        seeds.TemporalGradientFlow(
            step=int(steps[row, layer]),
            layer_name=series.names[layer],
            gradient_magnitude=float(values[row, layer]),
            flow_direction=kinds[int(directions.kind[row, layer])],
            stability_score=number_or_none(directions.stability[row, layer]),
            unavailable=_undirected(
                int(directions.kind[row, layer]) < 0, bool(np.isnan(directions.stability[row, layer]))
            ),
        )
        for row in range(rows)
        for layer in range(columns)
        if steps[row, layer] >= 0
    ]
    return flows if series.complete else sorted(flows, key=lambda flow: flow.step)


def _nonfinite_layers(series: LayerSeries, topology: Topology | None) -> list[seeds.NonFiniteLayer]:
    """First to turn bad first; of several at one step, the first executed first."""
    bad = series.recorded & ~np.isfinite(series.values)
    layers = np.flatnonzero(bad.any(axis=0))
    first = series.steps[np.argmax(bad[:, layers], axis=0)] if len(layers) else np.empty(0, np.int64)
    found = [
        seeds.NonFiniteLayer(series.names[layer], int(bad[:, layer].sum()), int(step))
        for layer, step in zip(layers, first)
    ]
    place = topology.position if topology else {}
    return sorted(found, key=lambda item: (item.first_step, place.get(series.index[item.layer_name], 0)))
