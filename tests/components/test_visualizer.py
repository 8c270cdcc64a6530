"""The flow visualizer: what the original's values become, with a graph and without."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest

from undertow import GradientFlowVisualizer, GradientHistory
from undertow.schema import GradientVisualizationConfig, GraphNode, GraphSource, InputError, LayerGraph

GOLDEN = {"a": [1, 2, 4, 3, 5], "b": [0.5, 0.4, 0.3, 0.35, 0.2], "c": [0, 0, 0, 0, 0]}
CHAIN = [("a", "b"), ("b", "c")]


def flow(series: Mapping[str, object], graph: object = None, step: int | None = None, **config: object):
    settings = GradientVisualizationConfig(**config)  # pyright: ignore[reportArgumentType]
    return GradientFlowVisualizer(settings).generate_visualization(series, step, graph)


def kinds(series: dict[str, object], graph: object) -> dict[str, str]:
    return {node.layer_name: node.node_type for node in flow(series, graph).flow_network.nodes}


def edge_kinds(series: dict[str, object], graph: object) -> dict[tuple[str, str], str | None]:
    return {(edge.from_layer, edge.to_layer): edge.edge_type for edge in flow(series, graph).flow_network.edges}


def test_golden_layers() -> None:
    flows = flow(GOLDEN).layer_flows
    assert flows["a"].gradient_magnitudes == [1, 2, 4, 3, 5]
    assert flows["a"].information_flow_rate == pytest.approx(1.2)
    assert flows["b"].information_flow_rate == pytest.approx(0.08)
    assert flows["c"].information_flow_rate == 0
    assert flows["a"].flow_consistency == pytest.approx(0.624225, abs=1e-6)
    assert flows["b"].flow_consistency == pytest.approx(0.796551, abs=1e-6)
    assert flows["c"].flow_consistency == 1


def test_golden_nodes_without_a_graph() -> None:
    result = flow(GOLDEN)
    nodes = {node.layer_name: node for node in result.flow_network.nodes}
    assert [node.node_type for node in nodes.values()] == ["Normal", "Normal", "Dead"]
    assert nodes["a"].gradient_strength == 3
    assert nodes["a"].influence_score == pytest.approx(3 * 0.624225, abs=1e-5)
    assert nodes["a"].connectivity is None
    assert nodes["a"].unavailable["connectivity"] == "no graph was given"
    assert result.flow_network.edges == []
    assert result.critical_paths == []
    assert result.unavailable["edges"] == "no graph was given"
    assert result.flow_network.network_metrics.network_connectivity is None
    assert all(layer.bottleneck_score is None for layer in result.layer_flows.values())


def test_golden_dead_zone_and_vanishing_region() -> None:
    result = flow(GOLDEN)
    (zone,) = result.dead_zones
    assert (zone.zone_id, zone.affected_layers, zone.dead_duration) == ("dead_zone_1", ["c"], 5)
    assert (zone.recovery_potential, zone.intervention_required) == ("Low", True)
    (region,) = result.vanishing_regions
    assert (region.region_id, region.affected_layers, region.severity_level) == ("vanishing_1", ["c"], "Critical")
    assert region.extent.affected_parameters is None
    assert not any("lip" in advice for advice in region.mitigation_suggestions)
    assert result.exploding_regions == []


def test_order_graph_and_paths_follow_execution() -> None:
    series = {"h.10": [1.0] * 5, "h.2": [1.0] * 5, "h.1": [1.0] * 5}
    result = flow(series, [("h.1", "h.2"), ("h.2", "h.10")])
    assert [node.layer_name for node in result.flow_network.nodes] == ["h.1", "h.2", "h.10"]
    assert [node.node_type for node in result.flow_network.nodes] == ["Source", "Normal", "Sink"]
    assert [node.connectivity for node in result.flow_network.nodes] == [1, 2, 1]
    (path,) = result.critical_paths
    assert (path.path_id, path.layers, path.path_length) == ("main_path", ["h.1", "h.2", "h.10"], 3)
    assert path.total_flow_strength == pytest.approx(1)
    assert path.criticality_score == pytest.approx(1)
    assert path.optimization_potential == pytest.approx(0)
    metrics = result.flow_network.network_metrics
    assert metrics.network_connectivity == pytest.approx(1 / 3)
    assert metrics.overall_flow_efficiency == pytest.approx(1)
    assert metrics.information_propagation_speed == pytest.approx(1)
    assert list(result.layer_flows) == ["h.1", "h.2", "h.10"]


def test_every_form_of_graph_gives_the_same() -> None:
    import networkx

    layers = LayerGraph(
        tuple(GraphNode(i, name) for i, name in enumerate(("a", "", "b", "c"))),
        ((0, 1), (1, 2), (2, 3)),
        GraphSource.AUTOGRAD,
    )
    forms = [CHAIN, {"a": ["b"], "b": "c"}, networkx.DiGraph(CHAIN), layers, [*CHAIN, ("c", "loss"), ("input", "a")]]
    results = [[(e.from_layer, e.to_layer) for e in flow(GOLDEN, form).flow_network.edges] for form in forms]
    assert all(result == CHAIN for result in results)
    with pytest.raises(InputError, match="pairs"):
        flow(GOLDEN, 3)
    with pytest.raises(InputError, match="names no measured layer"):
        flow(GOLDEN, [("x", "y")])


def test_node_types_from_gain_not_size() -> None:
    wide, narrow = [1.0] * 10, [0.05] * 10
    chain = [("in", "x"), ("x", "y"), ("y", "out")]
    assert kinds({"in": narrow, "x": narrow, "y": wide, "out": wide}, chain)["x"] == "Bottleneck"
    around = [*chain, ("in", "y")]
    assert kinds({"in": wide, "x": narrow, "y": wide, "out": wide}, around)["x"] == "Normal"
    assert kinds({"in": [50.0] * 10, "x": [50.0] * 10, "y": wide, "out": wide}, chain)["x"] == "Amplifier"
    assert kinds({"in": wide, "x": wide, "y": [0.0] * 10, "out": wide}, chain)["y"] == "Dead"
    assert set(kinds({name: [1e4] * 5 for name in ("in", "x", "y", "out")}, chain).values()) == {
        "Source", "Normal", "Sink",
    }  # fmt: skip


def test_edge_types() -> None:
    one, none = [1.0] * 20, [0.0] * 20
    assert edge_kinds({"a": none, "b": one}, [("a", "b")]) == {("a", "b"): "Blocked"}
    assert edge_kinds({"a": one, "b": one}, [("a", "b")]) == {("a", "b"): "Strong"}
    assert edge_kinds({"a": [0.0, 1.0] * 10, "b": one}, [("a", "b")]) == {("a", "b"): "Intermittent"}
    assert edge_kinds({"a": [1e-3] * 20, "b": one}, [("a", "b")]) == {("a", "b"): "Weak"}
    assert edge_kinds({"a": one, "b": none}, [("a", "b")]) == {("a", "b"): None}
    steady = flow({"a": [0.3] * 20, "b": [0.6] * 20}, [("a", "b")]).flow_network.edges[0]
    assert (steady.flow_strength, steady.flow_consistency) == (0.5, 1.0)


BRANCHES = [("in", "l"), ("in", "r"), ("l", "out"), ("r", "out")]


def test_norms_do_not_tell_branches_apart() -> None:
    """The larger branch of the norms need not be the one that the gradient at the input comes from."""
    series = {"in": [1.0] * 5, "l": [3.0] * 5, "r": [1e-4] * 5, "out": [1.0] * 5}
    result = flow(series, BRANCHES)
    assert result.critical_paths == []
    assert "norms do not tell" in result.unavailable["critical_paths"]
    nodes = {node.layer_name: node for node in result.flow_network.nodes}
    assert (nodes["in"].node_type, nodes["in"].gain) == ("Source", None)
    assert [nodes[name].flow_share for name in ("in", "l", "r", "out")] == [1.0, None, None, None]
    assert all("norms do not tell" in nodes[name].unavailable["flow_share"] for name in ("l", "r", "out"))
    edges = {(edge.from_layer, edge.to_layer): edge for edge in result.flow_network.edges}
    assert edges["in", "l"].flow_share is edges["in", "l"].flow_strength is edges["in", "l"].edge_type is None
    assert edges["l", "out"].flow_share == 1
    assert edges["l", "out"].flow_strength == 3
    assert result.flow_network.network_metrics.loss_to_input_gain is None


def test_paths_share_the_flow() -> None:
    series = {"in": [1.0] * 5, "l": [3.0] * 5, "r": [1.0] * 5, "out": [1.0] * 5}
    shares = {("in", "l"): 0.2, ("in", "r"): 0.8}
    result = GradientFlowVisualizer().generate_visualization(series, graph=BRANCHES, shares=shares)
    assert [path.layers for path in result.critical_paths] == [["in", "r", "out"], ["in", "l", "out"]]
    assert [path.criticality_score for path in result.critical_paths] == pytest.approx([0.8, 0.2])
    assert [node.flow_share for node in result.flow_network.nodes] == pytest.approx([1.0, 0.2, 0.8, 1.0])
    assert result.unavailable == {}
    with pytest.raises(InputError, match="no edge of the graph"):
        GradientFlowVisualizer().generate_visualization(series, graph=BRANCHES, shares={("in", "out"): 1.0})


def test_a_branch_against_the_others_carries_less_than_nothing() -> None:
    series = {name: [1.0] * 5 for name in ("in", "l", "r", "out")}
    shares = {("in", "l"): 1.5, ("in", "r"): -0.5}
    paths = GradientFlowVisualizer().generate_visualization(series, graph=BRANCHES, shares=shares).critical_paths
    assert [path.criticality_score for path in paths] == [1.5, -0.5]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
def test_what_was_not_measured_is_no_gain_of_one(bad: float) -> None:
    """A layer of NaN in the middle, or exact zeros at the end: nothing is known of what crosses it."""
    middle = {"a": [1.0] * 5, "b": [1.0 if bad == 0 else bad] * 5, "c": [1.0 if bad else 0.0] * 5}
    result = flow(middle, CHAIN)
    nodes = {node.layer_name: node for node in result.flow_network.nodes}
    assert nodes["c" if bad == 0 else "b"].node_type == ("Dead" if bad == 0 else "NonFinite")
    metrics = result.flow_network.network_metrics
    assert metrics.loss_to_input_gain is metrics.information_propagation_speed is None
    assert "no gain" in metrics.unavailable["loss_to_input_gain"]
    (path,) = result.critical_paths
    assert (path.layers, path.criticality_score, path.total_flow_strength) == (["a", "b", "c"], 1.0, None)
    assert "total_flow_strength" in path.unavailable


def test_gains_that_multiply_beyond_all_numbers() -> None:
    names = [f"l{i}" for i in range(40)]
    chain = list(itertools.pairwise(names))
    growing = {name: [10.0 ** (300 - 15 * place)] * 3 for place, name in enumerate(names)}
    (path,) = flow(growing, chain).critical_paths
    assert math.isfinite(path.total_flow_strength)
    shrinking = {name: [10.0 ** (-300 + 15 * place)] * 3 for place, name in enumerate(names)}
    (path,) = flow(shrinking, chain).critical_paths
    assert 0 <= path.total_flow_strength <= 1.1e-12


def test_a_cycle_does_not_hang() -> None:
    result = flow({"a": [1.0] * 3, "b": [1.0] * 3}, [("a", "b"), ("b", "a")])
    assert [path.layers for path in result.critical_paths] == [["a", "b"]]


def test_directions_need_cosines_or_sketches() -> None:
    plain = flow(GOLDEN).layer_flows["a"]
    assert len(plain.gradient_directions) == 5
    assert plain.gradient_directions[1].consistency_score is None
    assert plain.gradient_directions[1].norm_ratio == 2
    assert "gradient_directions" in plain.unavailable
    turning = GradientHistory.from_norms("a", [1, 1, 1], sketches=[[1, 0], [0, 1], [0, -1]])
    directions = flow({"a": turning}).layer_flows["a"].gradient_directions
    assert [direction.consistency_score for direction in directions] == [None, 0, -1]
    assert directions[-1].direction_vector == (0, -1)
    given = GradientHistory.from_norms("a", [1, 1], cosines=[math.nan, 0.5])
    assert [d.consistency_score for d in flow({"a": given}).layer_flows["a"].gradient_directions] == [None, 0.5]


@pytest.mark.parametrize(
    ("norms", "direction"),
    [
        ([1, 2, 3], "Forward"), ([3, 2, 1], "Backward"), ([1, 1, 1], "Stagnant"), ([1, 5] * 10, "Oscillating"),
        ([1, 5, 1], None), ([1, 2], None), ([1e-9, 2e-9, 3e-9], "Forward"), ([5, 1] * 10 + [4, 1] * 3, "Oscillating"),
    ],
)  # fmt: skip
def test_flow_direction(norms: list[float], direction: str | None) -> None:
    assert flow({"a": norms}).temporal_flows[-1].flow_direction == direction


def test_temporal_flows_carry_their_own_steps() -> None:
    history = GradientHistory.from_norms("a", range(1, 101), steps=range(0, 1000, 10))
    result = flow({"a": history}, step=5000)
    assert [item.step for item in result.temporal_flows] == list(range(500, 1000, 10))
    assert len(flow({"a": history}, temporal_window=3).temporal_flows) == 3
    small = [item.stability_score for item in flow({"a": [1e-9, 3e-9] * 10}).temporal_flows]
    large = [item.stability_score for item in flow({"a": [1e9, 3e9] * 10}).temporal_flows]
    assert small[2:] == pytest.approx(large[2:])
    assert small[-1] is not None
    assert small[-1] < 0.7


@pytest.mark.parametrize(
    ("value", "severity"), [(5e-6, "Mild"), (1e-6, "Moderate"), (5e-8, "Severe"), (1e-9, "Critical"), (0, "Critical")]
)
def test_vanishing_severity_by_decades(value: float, severity: str) -> None:
    (region,) = flow({"a": [value] * 20}).vanishing_regions
    assert region.severity_level == severity


@pytest.mark.parametrize(
    ("value", "severity"),
    [(150, "Mild"), (2e3, "Moderate"), (2e4, "Severe"), (1e6, "Critical"), (math.inf, "Critical")],
)
def test_exploding_severity_by_decades(value: float, severity: str) -> None:
    (region,) = flow({"a": [value] * 20}).exploding_regions
    assert region.severity_level == severity


def test_an_old_spike_marks_nothing_for_ever() -> None:
    norms = [1.0] * 200
    norms[10] = 1e6
    assert flow({"a": norms}).exploding_regions == []
    norms[190] = 1e6
    (region,) = flow({"a": norms}).exploding_regions
    assert (region.extent.start_step, region.extent.end_step, region.extent.duration_steps) == (190, 190, 1)
    assert not region.extent.ongoing


def test_current_step_decides_what_is_ongoing() -> None:
    history = {"a": [1.0] * 10 + [1e-7] * 10}
    for step, ongoing in ((None, True), (19, True), (20, True), (40, False), (5, False)):
        (region,) = flow(history, step=step).vanishing_regions
        assert region.extent.ongoing is ongoing, step


def test_regions_join_along_the_graph() -> None:
    small = {name: GradientHistory.from_norms(name, [1e-9] * 5, parameter_count=100) for name in ("x", "y")}
    series = {"z": GradientHistory.from_norms("z", [1.0] * 5, parameter_count=7), **small}
    (region,) = flow(series, [("x", "y"), ("y", "z")]).vanishing_regions
    assert region.affected_layers == ["x", "y"]
    assert (region.extent.start_layer, region.extent.end_layer) == ("x", "y")
    assert region.extent.affected_parameters == 200
    assert len(flow(series).vanishing_regions) == 2


def test_tensor_size_counts() -> None:
    def layers(count: int) -> dict[str, object]:
        rest = {f"r{i}": GradientHistory.from_norms("r", [1.0] * 5, parameter_count=100) for i in range(3)}
        return {**rest, "a": GradientHistory.from_norms("a", [1e-3] * 5, parameter_count=count)}

    assert flow(layers(100)).vanishing_regions == []
    assert [r.affected_layers for r in flow(layers(10**9)).vanishing_regions] == [["a"]]
    tiny = {"bias": GradientHistory.from_norms("bias", [5e-6] * 5, parameter_count=2)}
    assert flow(tiny).vanishing_regions == []


@pytest.mark.parametrize(
    ("norms", "potential"),
    [([0] * 6 + [1] * 4, "Medium"), ([0] * 19 + [1], "Low"), ([0, 0, 1] * 4, "High"), ([0] * 50, "None")],
)
def test_recovery_potential(norms: list[float], potential: str) -> None:
    (zone,) = flow({"a": norms}).dead_zones
    assert zone.recovery_potential == potential
    assert zone.dead_duration == norms.count(0)


def test_nonfinite_is_a_state_of_its_own() -> None:
    series = {"x": [1, math.nan, 2, math.nan], "y": [1, 1, math.inf, 1], "z": [1, 1, 1, 1]}
    result = flow(series, [("x", "y"), ("y", "z")])
    assert [(layer.layer_name, layer.count, layer.first_step) for layer in result.nonfinite_layers] == [
        ("x", 2, 1), ("y", 1, 2),
    ]  # fmt: skip
    layer = result.layer_flows["x"]
    assert (layer.flow_consistency, layer.information_flow_rate) == (None, None)
    assert (layer.nonfinite_count, layer.first_nonfinite_step) == (2, 1)
    assert layer.unavailable["flow_consistency"] == "2 samples are not finite"
    assert result.vanishing_regions == []
    assert [region.affected_layers for region in result.exploding_regions] == [["y"]]


def test_empty_and_single_samples() -> None:
    result = flow({"none": [], "one": [0.3]}, step=0)
    assert result.layer_flows["none"].flow_consistency is None
    assert result.layer_flows["none"].information_flow_rate is None
    assert result.layer_flows["one"].information_flow_rate == 0
    nodes = {node.layer_name: node for node in result.flow_network.nodes}
    assert nodes["none"].gradient_strength is None
    assert nodes["one"].gradient_strength == 0.3
    assert [flow_.layer_name for flow_ in result.temporal_flows] == ["one"]
    assert result.dead_zones == result.vanishing_regions == []
    nothing = flow({})
    assert (nothing.layer_flows, nothing.critical_paths, nothing.flow_network.nodes) == ({}, [], [])


def test_configuration_is_honoured() -> None:
    quiet = flow(GOLDEN, CHAIN, show_temporal_flows=False, show_critical_paths=False, show_problem_regions=False)
    assert quiet.temporal_flows == quiet.critical_paths == quiet.vanishing_regions == quiet.dead_zones == []
    equal = {"a": [1.0] * 5, "b": [1.0] * 5}
    assert len(flow(equal, [("a", "b")]).flow_network.edges) == 1
    assert flow(equal, [("a", "b")], flow_threshold=2.0).flow_network.edges == []
    with pytest.raises(InputError, match="temporal_window"):
        flow(GOLDEN, temporal_window=0)
    with pytest.raises(InputError, match="flow_threshold"):
        flow(GOLDEN, flow_threshold=math.nan)
    for scheme in ("Default", "HighContrast", "ColorBlind", "Monochrome"):
        assert flow(GOLDEN, color_scheme=scheme).visualization_config.color_scheme == scheme
    with pytest.raises(InputError, match="Legal values: Default, HighContrast"):
        flow(GOLDEN, color_scheme="Purple")


def test_create_visualization_uses_the_last_recorded_step() -> None:
    result = GradientFlowVisualizer().create_visualization({"a": [1.0] * 5 + [0.0] * 20})
    assert result.dead_zones[0].ongoing
    assert result.temporal_flows[-1].step == 24


def test_layers_of_different_steps_line_up() -> None:
    a = GradientHistory.from_norms("a", [1, 1, 1, 1], steps=[0, 2, 4, 6])
    b = GradientHistory.from_norms("b", [2, 2, 8], steps=[2, 4, 5])
    result = flow({"a": a, "b": b}, [("a", "b")])
    assert result.flow_network.edges[0].flow_strength == 0.5
    assert result.layer_flows["b"].information_flow_rate == 2
    assert [item.step for item in result.temporal_flows] == [0, 2, 2, 4, 4, 5, 6]


def test_duplicate_names_and_broken_buffers_are_refused() -> None:
    twice = [GradientHistory.from_norms("a", [1]), GradientHistory.from_norms("a", [2])]
    with pytest.raises(InputError, match="'a' is given twice"):
        GradientFlowVisualizer().create_visualization(twice)
    broken = GradientHistory.from_norms("a", [1, 2])
    broken.step_numbers.append(1)
    with pytest.raises(InputError, match="'a'"):
        GradientFlowVisualizer().create_visualization([broken])


def test_long_noise_is_called_stagnant_almost_always() -> None:
    noise = np.abs(np.random.default_rng(3).normal(1, 0.2, size=(60, 400)))
    last = [item for item in flow({str(i): noise[:, i] for i in range(400)}).temporal_flows if item.step == 59]
    assert sum(item.flow_direction != "Stagnant" for item in last) <= 4


@pytest.mark.parametrize(
    ("norms", "activity", "potential"),
    [
        ([0] * 60, 0.4, "Medium"),
        ([0] * 60, 0.0, "None"),
        ([0] * 10 + [1] + [0] * 40, 0.4, "High"),
        ([0, 0, 1] * 4 + [0] * 9, 0.0, "Low"),
    ],
)
def test_activations_decide_whether_a_dead_gradient_can_come_back(
    norms: list[float], activity: float, potential: str
) -> None:
    visualizer = GradientFlowVisualizer()
    (zone,) = visualizer.generate_visualization({"a": norms}, unit_activity={"a": activity}).dead_zones
    assert (zone.recovery_potential, zone.unit_activity, zone.unavailable) == (potential, activity, {})
    (zone,) = visualizer.generate_visualization({"a": norms}, unit_activity={"b": activity}).dead_zones
    assert zone.unit_activity is None
    assert "earlier dead runs" in zone.unavailable["unit_activity"]
