"""The flow visualizer."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.components.conformance import original
from tests.components.conformance.rules import rule

from undertow import GradientFlowVisualizer, GradientHistory
from undertow.schema import GradientFlowVisualization, GradientVisualizationConfig

A, B, C = [1.0, 2.0, 4.0, 3.0, 5.0], [0.5, 0.4, 0.3, 0.35, 0.2], [0.0] * 5
CHAIN = [("a", "b"), ("b", "c")]


def flow(
    series: dict[str, Any] | None = None, graph: Any = None, config: Any = None, step: int | None = None
) -> GradientFlowVisualization:
    given = {"a": A, "b": B, "c": C} if series is None else series
    return GradientFlowVisualizer(config).generate_visualization(given, step, graph)


def layer(norms: list[float]) -> Any:
    return flow({"a": norms}).layer_flows["a"]


def random_series(count: int = 60) -> list[list[float]]:
    chance = np.random.default_rng(7)
    return [list(np.exp(chance.normal(0, 2, int(chance.integers(0, 40))))) for _ in range(count)]


@rule("flow", "gradient_magnitudes are a copy of the norms")
def _() -> None:
    for norms in random_series():
        assert layer(norms).gradient_magnitudes == norms


@rule("flow", "information_flow_rate: Σ|Δ| / n, 0 below two samples")
def _() -> None:
    for norms in random_series():
        if norms:
            assert layer(norms).information_flow_rate == pytest.approx(original.flow_rate(norms))


@rule("flow", "information_flow_rate of an empty history is 0", "empty-history")
def _() -> None:
    assert (layer([]).information_flow_rate, layer([]).unavailable["information_flow_rate"]) == (None, "no samples")


@rule("flow", "direction_vector is [norm]", "direction-vector")
def _() -> None:
    first = layer(A).gradient_directions[0]
    assert first.direction_vector is None
    assert "sketch" in first.unavailable["direction_vector"]
    history = GradientHistory.from_norms("a", [1.0], sketches=[[3.0, 4.0]])
    assert flow({"a": history}).layer_flows["a"].gradient_directions[0].direction_vector == (3.0, 4.0)


@rule("flow", "a direction's magnitude is the norm, its step the recorded one")
def _() -> None:
    history = GradientHistory.from_norms("a", A, steps=[0, 2, 4, 6, 8])
    directions = flow({"a": history}).layer_flows["a"].gradient_directions
    assert [(one.step, one.magnitude) for one in directions] == list(zip([0, 2, 4, 6, 8], A))


@rule("flow", "a direction's consistency_score compares norms", "direction-consistency")
def _() -> None:
    history = GradientHistory.from_norms("a", A, cosines=[math.nan, 0.9, 0.8, -0.1, 0.5])
    directions = flow({"a": history}).layer_flows["a"].gradient_directions
    assert [one.consistency_score for one in directions] == [None, 0.9, 0.8, -0.1, 0.5]
    assert [one.norm_ratio for one in directions][1:3] == [2.0, 2.0]


@rule("flow", "flow_consistency: min(1, 1/(1 + mean relative change))", "flow-consistency")
def _() -> None:
    assert layer(A).flow_consistency == pytest.approx(0.624225, abs=1e-6)
    assert layer(B).flow_consistency == pytest.approx(0.796551, abs=1e-6)


@rule("flow", "flow_consistency of one sample is 1", "flow-consistency")
def _() -> None:
    assert layer([0.3]).flow_consistency is None


@rule("flow", "bottleneck_score is 1 − minimum/mean over time", "bottleneck")
def _() -> None:
    assert layer(A).bottleneck_score is None
    falling = {"a": [1.0, 0.5, 0.2], "b": [1.0, 0.5, 0.2]}
    assert flow(falling, [("a", "b")]).layer_flows["a"].bottleneck_score == pytest.approx(0.0)


@rule("flow", "one temporal record per layer, at current_step", "temporal-flows")
def _() -> None:
    records = flow({"a": A}, config={"temporal_window": 3}, step=99).temporal_flows
    assert [(one.step, one.gradient_magnitude) for one in records] == [(2, 4.0), (3, 3.0), (4, 5.0)]


@rule("flow", "no temporal record for a layer without samples")
def _() -> None:
    assert flow({"a": []}).temporal_flows == []


@rule("flow", "flow_direction from the newest three norms", "flow-direction")
def _() -> None:
    assert flow({"a": [1.0, 5.0, 1.0]}).temporal_flows[-1].flow_direction is None  # was Stagnant
    assert flow({"a": list(np.linspace(1, 3, 20))}).temporal_flows[-1].flow_direction == "Forward"


@rule("flow", "flow_direction below three samples is Forward", "flow-direction")
def _() -> None:
    assert flow({"a": [0.3]}).temporal_flows[0].flow_direction is None


@rule("flow", "temporal stability_score: 1/(1 + variance) of the newest five", "temporal-stability")
def _() -> None:
    tiny = np.random.default_rng(0).exponential(1e-6, 30)
    assert flow({"a": tiny}).temporal_flows[-1].stability_score < 0.7  # was 1 within rounding


@rule("flow", "gradient_strength of a node is the mean of its norms")
def _() -> None:
    assert [node.gradient_strength for node in flow().flow_network.nodes] == pytest.approx([3, 0.35, 0])


@rule("flow", "gradient_strength of an empty history is NaN", "empty-history")
def _() -> None:
    assert flow({"a": []}).flow_network.nodes[0].gradient_strength is None


@rule("flow", "influence_score is strength × flow_consistency")
def _() -> None:
    for node in flow().flow_network.nodes[:2]:
        found = flow().layer_flows[node.layer_name].flow_consistency
        assert node.influence_score == pytest.approx((node.gradient_strength or 0) * (found or 0))


@rule("flow", "connectivity of a node is the number of layers", "connectivity")
def _() -> None:
    assert [node.connectivity for node in flow(graph=CHAIN).flow_network.nodes] == [1, 2, 1]


@rule("flow", "node types from absolute sizes of the norms", "node-types")
def _() -> None:
    fork = {name: list(np.exp(np.random.default_rng(0).normal(0, 0.1, 20))) for name in "abc"}
    assert [node.node_type for node in flow(fork, CHAIN).flow_network.nodes] == ["Source", "Normal", "Sink"]


@rule("flow", "a layer of zeros is a Bottleneck", "dead-node")
def _() -> None:
    assert flow().flow_network.nodes[2].node_type == "Dead"


@rule("flow", "edges join neighbours in the order of a hash map", "edges")
def _() -> None:
    assert flow().flow_network.edges == []
    assert [(one.from_layer, one.to_layer) for one in flow(graph=CHAIN).flow_network.edges] == CHAIN


@rule("flow", "edge flow_strength is the mean of two rates of change", "edge-strength")
def _() -> None:
    steady = {"a": [2.0] * 9, "b": [1.0] * 9}
    assert flow(steady, [("a", "b")]).flow_network.edges[0].flow_strength == pytest.approx(2)  # was 0, and Weak


@rule("flow", "edge flow_consistency is the mean of its ends' consistencies", "edge-strength")
def _() -> None:
    assert flow({"a": A, "b": A}, [("a", "b")]).flow_network.edges[0].flow_consistency == pytest.approx(1)


@rule("flow", "Blocked is what no other edge type fits", "edge-types")
def _() -> None:
    blocked = {"a": [0.0] * 9, "b": [1.0] * 9}
    assert flow(blocked, [("a", "b")]).flow_network.edges[0].edge_type == "Blocked"


@rule("flow", "overall_flow_efficiency: mean edge strength", "network-metrics")
def _() -> None:
    assert flow(
        {"a": [1.0] * 5, "b": [4.0] * 5}, [("a", "b")]
    ).flow_network.network_metrics.overall_flow_efficiency == pytest.approx(0.25)


@rule("flow", "network_connectivity: edges / (n(n−1))")
def _() -> None:
    assert flow(graph=CHAIN).flow_network.network_metrics.network_connectivity == pytest.approx(1 / 3)


@rule("flow", "bottleneck_density: bottlenecks / nodes, NaN without nodes", "empty-history")
def _() -> None:
    assert flow(graph=CHAIN).flow_network.network_metrics.bottleneck_density == 0
    assert flow({}).flow_network.network_metrics.bottleneck_density is None


@rule("flow", "flow_stability: mean edge consistency")
def _() -> None:
    found = flow({"a": A, "b": B}, [("a", "b")]).flow_network
    assert found.network_metrics.flow_stability == pytest.approx(found.edges[0].flow_consistency)


@rule("flow", "information_propagation_speed: efficiency × connectivity", "network-metrics")
def _() -> None:
    metrics = flow({"a": [1.0] * 5, "b": [4.0] * 5}, [("a", "b")]).flow_network.network_metrics
    assert metrics.information_propagation_speed == pytest.approx(0.25)


@rule("flow", "one critical path with every layer, criticality 0.8, potential 0.6", "critical-paths")
def _() -> None:
    assert flow().critical_paths == []
    found = flow({"a": A, "b": B}, [("a", "b")]).critical_paths
    assert [path.layers for path in found] == [["a", "b"]]
    assert (found[0].path_id, found[0].path_length) == ("main_path", 2)


@rule("flow", "vanishing when the mean of the whole history is below 1e-5", "regions-in-time")
def _() -> None:
    assert [one.affected_layers for one in flow({"a": [1e-6] * 20}).vanishing_regions] == [["a"]]
    assert flow({"a": [1e-6] * 20 + [1.0] * 100}).vanishing_regions == []


@rule("flow", "exploding when any norm was ever above 100", "regions-in-time")
def _() -> None:
    assert [one.affected_layers for one in flow({"a": [1.0, 200.0]}).exploding_regions] == [["a"]]
    assert flow({"a": [200.0] + [1.0] * 100}).exploding_regions == []


@rule("flow", "severity of a region: two fixed cuts", "four-severities")
def _() -> None:
    small = [flow({"a": [10.0**-power] * 20}).vanishing_regions[0].severity_level for power in (5.5, 6.5, 7.5, 8.5)]
    large = [flow({"a": [10.0**power] * 20}).exploding_regions[0].severity_level for power in (2.5, 3.5, 4.5, 5.5)]
    assert small == large == ["Mild", "Moderate", "Severe", "Critical"]


@rule("flow", "region ids count from 1: vanishing_1, exploding_1")
def _() -> None:
    found = flow({"a": [1e-9] * 9, "b": [1e-9] * 9, "c": [1e9] * 9})
    assert [one.region_id for one in found.vanishing_regions] == ["vanishing_1", "vanishing_2"]
    assert found.exploding_regions[0].region_id == "exploding_1"


@rule("flow", "a region is one layer, from itself to itself", "regions-in-time")
def _() -> None:
    extent = flow({"a": [1e-9] * 9, "b": [1e-9] * 9}, [("a", "b")]).vanishing_regions[0].extent
    assert (extent.start_layer, extent.end_layer) == ("a", "b")
    alone = flow({"a": [1e-9] * 9}).vanishing_regions[0].extent
    assert alone.start_layer == alone.end_layer == "a"


@rule("flow", "affected_parameters is 1000", "affected-parameters")
def _() -> None:
    sized = GradientHistory.from_norms("a", [1e-9] * 9, parameter_count=12)
    assert flow({"a": sized}).vanishing_regions[0].extent.affected_parameters == 12
    unknown = flow({"a": [1e-9] * 9}).vanishing_regions[0].extent
    assert unknown.affected_parameters is None
    assert unknown.unavailable["affected_parameters"] == "the size of a layer is not known"


@rule("flow", "duration_steps is the length of the history", "regions-in-time")
def _() -> None:
    assert flow({"a": [1.0] * 5 + [1e-9] * 9}).vanishing_regions[0].extent.duration_steps == 9


@rule("flow", "three fixed suggestions against vanishing gradients", "region-advice")
def _() -> None:
    (region,) = flow({"a": [1e-9] * 9, "b": [1.0] * 9}).vanishing_regions
    assert region.mitigation_suggestions == [
        "It was so from the first sample: check the initialisation of these layers."
    ]


@rule("flow", "three fixed suggestions against exploding gradients", "region-advice")
def _() -> None:
    (region,) = flow({"a": [1.0] * 9 + [1e3]}).exploding_regions
    assert region.mitigation_suggestions[0] == "Clip the gradient norm, for example to 1.0."


@rule("flow", "dead zone: more than half of the norms below 1e-8, its duration, intervention above 0.8")
def _() -> None:
    chance = np.random.default_rng(1)
    for _round in range(200):
        norms = list(np.where(chance.random(12) < chance.random(), 0.0, 1.0))
        zones = [(zone.dead_duration, zone.intervention_required) for zone in flow({"a": norms}).dead_zones]
        expected = original.dead_zone(norms)
        assert zones == ([] if expected is None else [expected])


@rule("flow", "dead zone ids count from 1")
def _() -> None:
    assert [zone.zone_id for zone in flow({"a": C, "b": C}).dead_zones] == ["dead_zone_1", "dead_zone_2"]


@rule("flow", "recovery_potential: Low above 0.9, else Medium", "recovery")
def _() -> None:
    def potential(norms: list[float]) -> str:
        return flow({"a": norms}).dead_zones[0].recovery_potential

    assert [potential([1.0] * live + [0.0] * 20) for live in (1, 9)] == ["Low", "Medium"]
    assert potential([1.0] * 9 + [0.0] * 200) == "None"
    assert potential(([0.0] * 9 + [1.0]) * 9) == "High"


@rule("flow", "show_temporal_flows, show_critical_paths and show_problem_regions are never read", "config-is-read")
def _() -> None:
    off = GradientVisualizationConfig(show_temporal_flows=False, show_critical_paths=False, show_problem_regions=False)
    found = flow(graph=CHAIN, config=off)
    assert (found.temporal_flows, found.critical_paths, found.dead_zones, found.vanishing_regions) == ([], [], [], [])


@rule("flow", "flow_threshold is never read", "config-is-read")
def _() -> None:
    series = {"a": [1.0] * 9, "b": [2.0] * 9}
    assert flow(series, [("a", "b")], {"flow_threshold": 0.6}).flow_network.edges == []


@rule("flow", "color_scheme is never read", "config-is-read")
def _() -> None:
    assert flow(config={"color_scheme": "HighContrast"}).visualization_config.color_scheme == "HighContrast"


@rule("flow", "create_visualization stamps step 0", "create-visualization")
def _() -> None:
    assert GradientFlowVisualizer().create_visualization({"a": A}).temporal_flows[-1].step == 4


@rule("flow", "nodes in the order of a hash map", "edges")
def _() -> None:
    names = [f"h.{number}" for number in range(12)]
    nodes = flow(dict.fromkeys(names, A), list(pairwise(names))).flow_network.nodes
    assert [node.layer_name for node in nodes] == names


@rule("flow", "NaN: perfect scores, never vanishing, Normal", "nonfinite")
def _() -> None:
    found = flow({"a": [1.0, math.nan, 1.0]})
    assert (found.layer_flows["a"].flow_consistency, found.layer_flows["a"].information_flow_rate) == (None, None)
    assert [(one.layer_name, one.count, one.first_step) for one in found.nonfinite_layers] == [("a", 1, 1)]


@rule("flow", "+Inf: exploding, Critical")
def _() -> None:
    assert flow({"a": [1.0, math.inf]}).exploding_regions[0].severity_level == "Critical"


@rule("flow", "no layers: no path, metrics 0 or NaN", "empty-history")
def _() -> None:
    assert flow({}).critical_paths == []
    assert flow({}).flow_network.network_metrics.overall_flow_efficiency is None


@rule("flow", "one sample of 0.3: rate 0, node Normal")
def _() -> None:
    assert layer([0.3]).information_flow_rate == 0
    assert flow({"a": [0.3]}).flow_network.nodes[0].node_type == "Normal"


@rule("flow", "all zeros: vanishing Critical and a dead zone that needs intervention")
def _() -> None:
    found = flow({"a": C})
    assert found.vanishing_regions[0].severity_level == "Critical"
    assert found.dead_zones[0].intervention_required


@rule("flow", "golden a, b, c: rates 1.2, 0.08, 0")
def _() -> None:
    assert [one.information_flow_rate for one in flow().layer_flows.values()] == pytest.approx([1.2, 0.08, 0])
