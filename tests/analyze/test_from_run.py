"""The analyses of a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import undertow
from undertow.analyze.run_series import NewestSteps, TrainingSeries
from undertow.analyze.series import LayerSeries
from undertow.components.enhanced_analysis import enhanced_analysis
from undertow.components.run_analyses import dynamics_of_run, flow_of_run
from undertow.schema import Finding, GraphNode, GraphSource, Layer, LayerGraph, LayerKind, LayerTable, Severity
from undertow.schema.codes import CODES
from undertow.show.report.sections import flow_document


@dataclass
class Recording:
    """Numbers as a run has them, without a file."""

    steps: np.ndarray
    layers: LayerTable
    graph: LayerGraph = field(default_factory=LayerGraph)
    matrices: dict[str, np.ndarray] = field(default_factory=dict)
    series: dict[str, np.ndarray] = field(default_factory=dict)
    along: dict[str, np.ndarray] = field(default_factory=dict)  # connections

    @property
    def quantities(self) -> Sequence[str]:
        return list(self.matrices)

    @property
    def scalar_names(self) -> Sequence[str]:
        return list(self.series)

    def matrix(self, quantity: str, rows: slice | None = None) -> np.ndarray:
        return self.matrices[quantity].astype(np.float32)[rows or slice(None)]

    def newest_along_connections(self, quantity: str, count: int, first: int = 0) -> np.ndarray:
        return self.along[quantity].astype(np.float32)[first:][-count:]

    def scalars(self, name: str) -> np.ndarray:
        return self.series[name]


def finding(code: str, *layers: str, since: int = 0) -> Finding:
    """One that goes on."""
    return Finding(code, CODES[code], Severity.SEVERE, layers, since, since, 59, True, 1.0, "so it is")


def chain(steps: int = 60) -> Recording:
    """Two linear modules: gradients at their outputs say 0.5 gets across, parameters would say 2."""
    layers = LayerTable.of(
        [
            Layer("a.weight", kind=LayerKind.WEIGHT, order=0, parameter_count=10, group="a"),
            Layer("b.weight", kind=LayerKind.WEIGHT, order=2, parameter_count=30, group="b"),
            Layer("a", kind=LayerKind.MODULE, order=1),
            Layer("b", kind=LayerKind.MODULE, order=3),
        ]
    )
    nothing = np.full((steps, 2), np.nan)
    graph = LayerGraph((GraphNode(0, "a"), GraphNode(1, "b")), ((0, 1),), GraphSource.AUTOGRAD)
    norms = np.hstack([np.tile([2.0, 1.0], (steps, 1)), nothing])
    outputs = np.hstack([nothing, np.tile([0.5, 1.0], (steps, 1))])
    state = np.hstack([np.zeros((steps, 2)), nothing])
    matrices = {"gradient_norm": norms, "gradient_state": state, "output_gradient_norm": outputs}
    return Recording(np.arange(steps), layers, graph, matrices)


def branches(steps: int = 60) -> Recording:
    """a feeds b and c, which meet before d; and a module that only the loss uses."""
    names = ("a", "b", "c", "d")
    modules = [Layer(name, kind=LayerKind.MODULE, order=2 * place + 1) for place, name in enumerate(names)]
    weights = [
        Layer(f"{name}.weight", kind=LayerKind.WEIGHT, order=2 * place, group=name) for place, name in enumerate(names)
    ]
    nodes = (*(GraphNode(place, name) for place, name in enumerate(names[:3])), GraphNode(3, "", "Add", is_merge=True))
    graph = LayerGraph(
        (*nodes, GraphNode(4, "d")), ((0, 1), (0, 2), (1, 3), (2, 3), (3, 4)), GraphSource.AUTOGRAD,
        (("a", "b"), ("a", "c"), ("b", "+Add 1"), ("c", "+Add 1"), ("+Add 1", "d"), ("d", "")),
    )  # fmt: skip
    norms = np.tile([1.0] * 4 + [np.nan] * 4, (steps, 1))
    outputs = np.tile([np.nan] * 4 + [2.0, 1.0, 1e-4, 1.0], (steps, 1))
    along = {
        "flow_share": np.tile([0.75, 0.25, 1.0, 1.0, 1.0, 1.0], (steps, 1)),
        "flow_size": np.tile([0.5, 0.25, 1.0, 1.0, 1.0, 1.0], (steps, 1)),
    }
    matrices = {"gradient_norm": norms, "gradient_state": 0 * norms, "output_gradient_norm": outputs}
    return Recording(np.arange(steps), LayerTable.of([*weights, *modules]), graph, matrices, along=along)


def test_paths_follow_measured_shares() -> None:
    run = branches()
    run.along["flow_share"][:30, :2] = np.nan  # not sampled
    flow = flow_of_run(run, [])
    assert [(path.layers, path.criticality_score) for path in flow.critical_paths] == [
        (["a", "b", "d"], 0.75), (["a", "c", "d"], 0.25),
    ]  # fmt: skip
    edges = {(edge.from_layer, edge.to_layer): edge for edge in flow.flow_network.edges}
    assert edges["a", "b"].flow_strength == pytest.approx(0.5 * 2 / 1)
    assert (edges["a", "c"].flow_share, edges["b", "d"].flow_share) == (0.25, 1.0)
    assert [node.flow_share for node in flow.flow_network.nodes] == [1.0, 0.75, 0.25, 1.0]
    assert flow.layer_flows["b.weight"].bottleneck_score is not None


def test_without_shares_it_says_why() -> None:
    run = branches()
    run.graph = replace(run.graph, connections=(), unmeasured="the training runs on several ranks")
    flow = flow_of_run(run, [])
    assert flow.critical_paths == []
    assert flow.unavailable["critical_paths"] == "the training runs on several ranks"
    compiled = chain()
    compiled.graph = replace(compiled.graph, source=GraphSource.CALL_ORDER)
    flow = flow_of_run(compiled, [])
    assert flow.critical_paths == []
    assert "compiled" in flow.unavailable["critical_paths"]
    assert flow.flow_network.edges[0].flow_strength == pytest.approx(0.5)


def test_an_output_gradient_that_is_not_finite_is_a_state() -> None:
    run = branches()
    bad = np.zeros_like(run.matrices["output_gradient_norm"])
    run.matrices["output_gradient_norm"][40:, 5] = np.nan
    bad[40:, 5] = 3
    run.matrices["output_gradient_nonfinite_count"] = bad
    nodes = {node.layer_name: node.node_type for node in flow_of_run(run, []).flow_network.nodes}
    assert nodes == {"a": "Source", "b": "NonFinite", "c": "Normal", "d": "Sink"}


def test_gains_are_of_output_gradients() -> None:
    run = chain()
    flow = flow_of_run(run, [])
    assert list(flow.layer_flows) == ["a.weight", "b.weight"]
    assert [node.layer_name for node in flow.flow_network.nodes] == ["a", "b"]
    assert flow.flow_network.edges[0].flow_strength == pytest.approx(0.5)
    del run.matrices["output_gradient_norm"]
    assert flow_of_run(run, []).flow_network.edges[0].flow_strength == pytest.approx(2)


def test_none_frozen_and_nonfinite_are_different() -> None:
    run = chain()
    run.matrices["gradient_norm"][:, 0] = np.nan
    run.matrices["gradient_state"][:30, 0] = 1  # None: nothing to measure
    flow = flow_of_run(run, [])  # present but NaN from step 30 on
    assert [(layer.layer_name, layer.count, layer.first_step) for layer in flow.nonfinite_layers] == [
        ("a.weight", 30, 30)
    ]
    run.matrices["gradient_state"][:, 0] = 2  # frozen
    assert list(flow_of_run(run, []).layer_flows) == ["b.weight"]


def test_the_newest_steps_only() -> None:
    run = chain(60)
    run.matrices["gradient_norm"][:40, 0] = 500.0
    run.series = {"loss": np.linspace(2, 1, 60), "step_skipped": np.zeros(60)}
    newest = NewestSteps(run, 20)
    assert newest.steps.tolist() == list(range(40, 60))
    assert newest.matrix("gradient_norm", slice(1, 3)).shape == (2, 4)
    assert dynamics_of_run(newest, []).layer_details["a.weight"].gradient_statistics.samples == 20
    assert flow_of_run(newest, []).layer_flows["a.weight"].gradient_magnitudes == [2.0] * 20
    whole = dynamics_of_run(newest, [], window=50, whole=run).network_level_analysis
    assert whole.convergence_indicators.convergence_trend == "Converging"
    assert NewestSteps(run, 500).steps.tolist() == list(range(60))


def test_elements_that_are_not_finite_spoil_the_norm() -> None:
    run = chain()
    run.matrices["gradient_nonfinite_count"] = np.zeros((60, 4))
    run.matrices["gradient_nonfinite_count"][7, 1] = 3
    assert [(layer.layer_name, layer.first_step) for layer in flow_of_run(run, []).nonfinite_layers] == [
        ("b.weight", 7)
    ]


def test_small_norms_are_called_vanishing_or_dead_only_where_a_finding_says_so() -> None:
    """The bias of attention's keys has a gradient of rounding noise, and nothing is wrong with it."""
    layers = LayerTable.of(
        [
            Layer("keys.weight", kind=LayerKind.WEIGHT, order=0, parameter_count=9, group="keys"),
            Layer("keys.bias", kind=LayerKind.BIAS, order=0, parameter_count=3, group="keys"),
        ]
    )
    norms = np.tile([1.0, 1e-9], (60, 1))
    run = Recording(np.arange(60), layers, matrices={"gradient_norm": norms})
    flow = flow_of_run(run, [])
    assert flow.dead_zones == flow.vanishing_regions == []
    (region,) = flow_of_run(run, [finding("GRD001", "keys.weight", since=20)]).vanishing_regions
    assert (region.affected_layers, region.severity_level) == (["keys.weight"], "Severe")
    assert (region.extent.start_step, region.extent.duration_steps, region.extent.ongoing) == (20, 40, True)
    (zone,) = flow_of_run(run, [finding("GRD004", "keys.bias", since=50)]).dead_zones
    assert (zone.affected_layers, zone.dead_duration, zone.first_step) == (["keys.bias"], 10, 50)
    old = flow_of_run(NewestSteps(run, 10), [replace(finding("GRD001", "keys"), last_step=30, ongoing=False)])
    assert old.vanishing_regions == []  # over before these steps


def test_without_graph_or_frames() -> None:
    run = chain()
    run.graph = LayerGraph()
    flow = flow_of_run(run, [])
    assert flow.flow_network.edges == []
    assert [node.layer_name for node in flow.flow_network.nodes] == ["a.weight", "b.weight"]
    empty = chain(0)
    assert flow_of_run(empty, []).layer_flows == {}
    assert dynamics_of_run(empty, []).layer_details == {}
    empty.matrices = {}
    assert flow_of_run(empty, []).layer_flows == {}


def test_loss_and_validation_come_from_the_run() -> None:
    run = chain(300)
    rng = np.random.default_rng(0)
    loss = np.linspace(2, 1, 300) + rng.normal(0, 0.02, 300)
    run.series = {"loss": loss, "backward_count": np.ones(300)}
    indicators = dynamics_of_run(run, []).network_level_analysis.convergence_indicators
    assert indicators.convergence_trend == "Converging"
    run.series["val_loss"] = np.where(np.arange(300) % 5 == 0, 1 + np.abs(np.arange(300) - 100) / 100, np.nan)
    assert dynamics_of_run(run, []).network_level_analysis.training_dynamics.learning_phase == "RapidLearning"
    judged = dynamics_of_run(run, [finding("OPT006")]).network_level_analysis
    assert judged.training_dynamics.learning_phase == "Overfitting"
    assert "OPT006" in judged.convergence_indicators.unavailable["estimated_steps_to_convergence"]
    run.series["loss"] = np.where(np.arange(300) > 290, np.nan, loss)
    judged = dynamics_of_run(run, [finding("NUM002")]).network_level_analysis
    assert judged.convergence_indicators.convergence_trend == "Diverging"


def test_a_real_run(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with undertow.watch(model, optimizer, run_dir=tmp_path / "run", every=1, quiet=True):
        for _ in range(120):
            inputs = torch.randn(32, 4)
            loss = (model(inputs) - inputs[:, :1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    run = undertow.open_run(tmp_path / "run")
    flow, dynamics = flow_of_run(run, []), dynamics_of_run(run, [])
    assert [node.layer_name for node in flow.flow_network.nodes] == ["0", "2"]
    edge = flow.flow_network.edges[0]
    outputs = run.matrix("output_gradient_norm")
    gains = outputs[:, run.layers["0"].id] / outputs[:, run.layers["2"].id]
    assert edge.flow_strength == pytest.approx(np.median(gains[~np.isnan(gains)][-50:]), rel=1e-5)
    directions = flow.layer_flows["0.weight"].gradient_directions
    assert directions[50].consistency_score == pytest.approx(run.series("gradient_cosine", "0.weight")[50])
    assert any(direction.direction_vector is not None for direction in directions)
    norms = run.series("gradient_norm", "0.weight").astype(np.float64)
    statistics = dynamics.layer_details["0.weight"].gradient_statistics
    assert statistics.mean == pytest.approx(norms.mean())
    assert statistics.std == pytest.approx(norms.std())
    velocity = dynamics.network_level_analysis.training_dynamics.learning_velocity
    assert velocity is not None
    assert velocity > 0
    assert dynamics.network_level_analysis.training_dynamics.gradient_momentum == pytest.approx(1, abs=0.05)
    document = msgspec.json.decode(msgspec.json.encode(flow_document(flow)))
    assert list(document["layers"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert document["flow_network"]["edges"][0]["flow_strength"] == edge.flow_strength
    again = msgspec.json.decode(msgspec.json.encode(dynamics))
    assert set(again) == {"layer_details", "network_level_analysis", "gradient_hierarchy", "optimization_priorities"}


def silenced() -> Recording:
    """first → act → last, where only modules with parameters are nodes; no gradient reaches a parameter."""
    layers = LayerTable.of(
        [
            Layer("first.weight", kind=LayerKind.WEIGHT, order=0, parameter_count=9, group="first"),
            Layer("last.weight", kind=LayerKind.WEIGHT, order=2, parameter_count=9, group="last"),
            Layer("last.bias", kind=LayerKind.BIAS, order=2, parameter_count=3, group="last"),
            Layer("first", kind=LayerKind.MODULE, order=0),
            Layer("act", kind=LayerKind.MODULE, order=1),
            Layer("last", kind=LayerKind.MODULE, order=2),
        ]
    )
    graph = LayerGraph((GraphNode(0, "first"), GraphNode(1, "last")), ((0, 1),), GraphSource.AUTOGRAD)
    dead = np.full((60, 6), np.nan)
    dead[::10, 3:] = [0.0, 0.25, 0.0]
    calls = np.where(np.isnan(dead), np.nan, 1.0)
    matrices = {"gradient_norm": np.zeros((60, 6)), "activation_dead_fraction": dead, "activation_calls": calls}
    return Recording(np.arange(60), layers, graph, matrices)


def recoveries(run: Recording) -> dict[str, tuple[str, float | None]]:
    return {
        zone.affected_layers[0]: (zone.recovery_potential.value, zone.unit_activity)
        for zone in flow_of_run(run, [finding("GRD004", "first", "last")]).dead_zones
    }


def test_recovery_from_the_activations_around_a_layer() -> None:
    run = silenced()
    found = recoveries(run)
    assert found["first.weight"] == ("Medium", 0.75)  # its ReLU is alive
    assert found["last.weight"] == found["last.bias"] == ("None", None)  # what follows is not seen: by the past
    run.matrices["activation_dead_fraction"][50, 4] = 1.0
    found = recoveries(run)
    assert found["first.weight"] == found["last.weight"] == ("None", 0.0)
    assert found["last.bias"] == ("None", None)  # no input enters its gradient


def test_a_function_or_a_shared_module_does_not_show_that_activations_live() -> None:
    run = silenced()
    run.matrices["activation_calls"][:, 4] *= 2  # serves another layer too
    assert recoveries(run)["first.weight"] == ("None", None)
    run = silenced()
    run.matrices["activation_dead_fraction"][:, 4] = np.nan
    assert recoveries(run)["first.weight"] == ("None", None)


def test_micro_batches_show_agreement_and_conflict() -> None:
    run = chain()
    network = dynamics_of_run(run, []).network_level_analysis
    assert (network.gradient_agreement, network.conflicting_layers) == (None, [])
    assert "backward pass" in network.unavailable["gradient_agreement"]
    run.matrices["gradient_noise_scale"] = np.tile([3.0, np.inf, np.nan, np.nan], (60, 1))
    network = dynamics_of_run(run, [finding("GRD009", "b.weight")]).network_level_analysis
    assert (network.gradient_agreement, network.conflicting_layers) == (None, ["b.weight"])
    assert "point apart" in network.unavailable["gradient_agreement"]
    run.matrices["gradient_noise_scale"][:, 1] = 1.0
    network = dynamics_of_run(run, []).network_level_analysis
    assert (network.gradient_agreement, network.conflicting_layers) == (0.25, [])
    assert "gradient_agreement" not in network.unavailable


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e5])
def test_gradients_are_judged_beside_the_scale_of_the_loss(scale: float) -> None:
    """Multiplying the loss multiplies everything; only what is small or large beside the loss is out of range."""
    rng = np.random.default_rng(0)
    norms = scale * np.exp(0.1 * rng.normal(size=(100, 3)))
    series = LayerSeries.of(["a.weight", "b.weight", "c.weight"], np.arange(100), norms)
    loss = scale * (2.3 + 0.01 * rng.normal(size=100))
    found = enhanced_analysis(series, TrainingSeries(loss=loss)).layer_details.values()
    assert all(item.health_metrics.overall_health == "Healthy" for item in found)
    vanished = LayerSeries.of(series.names, series.steps, 1e-8 * norms)
    exploded = LayerSeries.of(series.names, series.steps, 1e4 * norms)
    spoilt = {1.0: [vanished, exploded], 1e-6: [vanished], 1e5: [exploded]}[scale]
    for series in spoilt:
        found = enhanced_analysis(series, TrainingSeries(loss=loss)).layer_details.values()
        assert all(item.health_metrics.overall_health != "Healthy" for item in found)
