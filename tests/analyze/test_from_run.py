"""The analyses of a recorded run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import undertow
from undertow.analyze.document import dynamics_document, flow_document
from undertow.analyze.from_run import dynamics_of_run, flow_of_run
from undertow.schema.graph import GraphNode, GraphSource, LayerGraph
from undertow.schema.layers import Layer, LayerKind, LayerTable


@dataclass
class Recording:
    """Numbers as a run has them, without a file."""

    steps: np.ndarray
    layers: LayerTable
    graph: LayerGraph = field(default_factory=LayerGraph)
    matrices: dict[str, np.ndarray] = field(default_factory=dict)
    series: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def quantities(self) -> Sequence[str]:
        return list(self.matrices)

    @property
    def scalar_names(self) -> Sequence[str]:
        return list(self.series)

    def matrix(self, quantity: str) -> np.ndarray:
        return self.matrices[quantity].astype(np.float32)

    def scalars(self, name: str) -> np.ndarray:
        return self.series[name]


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


def test_gains_are_of_output_gradients() -> None:
    run = chain()
    flow = flow_of_run(run)
    assert list(flow.layer_flows) == ["a.weight", "b.weight"]
    assert [node.layer_name for node in flow.flow_network.nodes] == ["a", "b"]
    assert flow.flow_network.edges[0].flow_strength == pytest.approx(0.5)
    del run.matrices["output_gradient_norm"]
    assert flow_of_run(run).flow_network.edges[0].flow_strength == pytest.approx(2)


def test_none_frozen_and_nonfinite_are_different() -> None:
    run = chain()
    run.matrices["gradient_norm"][:, 0] = np.nan
    run.matrices["gradient_state"][:30, 0] = 1  # None: nothing to measure
    flow = flow_of_run(run)  # present but NaN from step 30 on
    assert [(layer.layer_name, layer.count, layer.first_step) for layer in flow.nonfinite_layers] == [
        ("a.weight", 30, 30)
    ]
    run.matrices["gradient_state"][:, 0] = 2  # frozen
    assert list(flow_of_run(run).layer_flows) == ["b.weight"]


def test_without_graph_or_frames() -> None:
    run = chain()
    run.graph = LayerGraph()
    flow = flow_of_run(run)
    assert flow.flow_network.edges == []
    assert [node.layer_name for node in flow.flow_network.nodes] == ["a.weight", "b.weight"]
    empty = chain(0)
    assert flow_of_run(empty).layer_flows == {}
    assert dynamics_of_run(empty).layer_details == {}
    empty.matrices = {}
    assert flow_of_run(empty).layer_flows == {}


def test_loss_and_validation_come_from_the_run() -> None:
    run = chain(300)
    rng = np.random.default_rng(0)
    loss = np.linspace(2, 1, 300) + rng.normal(0, 0.02, 300)
    run.series = {"loss": loss, "backward_count": np.ones(300)}
    indicators = dynamics_of_run(run).network_level_analysis.convergence_indicators
    assert indicators.convergence_trend == "Converging"
    run.series["val_loss"] = np.where(np.arange(300) % 5 == 0, 1 + np.abs(np.arange(300) - 100) / 100, np.nan)
    assert dynamics_of_run(run).network_level_analysis.training_dynamics.learning_phase == "Overfitting"
    run.series["loss"] = np.where(np.arange(300) > 290, np.nan, loss)
    assert dynamics_of_run(run).network_level_analysis.convergence_indicators.convergence_trend == "Diverging"


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
    flow, dynamics = flow_of_run(run), dynamics_of_run(run)
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
    again = msgspec.json.decode(msgspec.json.encode(dynamics_document(dynamics)))
    assert set(again) == {"layer_details", "network_level_analysis", "gradient_hierarchy", "optimization_priorities"}
