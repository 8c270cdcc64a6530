"""GRD009: the loss of one head drowns that of another."""

from __future__ import annotations

from tests.detect.building import Training, watched_by

from undertow.detect.engine import Engine
from undertow.detect.rules.gradients.drowned_head import DrownedHead
from undertow.schema import GraphNode, GraphSource, LayerGraph, Severity


def two_heads() -> Training:
    training = Training("trunk", "left", "right")
    nodes = (*(GraphNode(i, name) for i, name in enumerate(("trunk", "left", "right"))), GraphNode(3, "", "Add", True))
    training.graph = LayerGraph(nodes, ((0, 1), (0, 2), (1, 3), (2, 3)), GraphSource.AUTOGRAD)
    training.engine = Engine([DrownedHead])
    training.engine.set_layers(training.layers, training.graph)
    return training


def test_a_head_that_is_drowned_from_the_start_is_named() -> None:
    training = two_heads().run(6, gradient_norm={"left": 1e-4, "right": 10.0})
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD009", Severity.MODERATE, ("left.weight",))
    assert finding.detected_step == 4


def test_a_head_that_has_learnt_its_task_is_not_drowned() -> None:
    training = two_heads().run(20)
    training.run(50, gradient_norm={"left": 1e-6, "right": 10.0})
    assert training.findings() == []


def test_a_head_that_is_done_is_not_drowned_where_gradients_are_measured_rarely() -> None:
    training = two_heads().run(3)
    for _ in range(20):
        training.run(1, gradient_norm={"left": 1e-6, "right": 10.0}).run(5, streams=("update",))
    assert training.findings() == []


def test_a_chain_has_one_head_only() -> None:
    training = watched_by(DrownedHead, names=("trunk", "left", "right"))
    training.run(20, gradient_norm={"left": 1e-6, "right": 10.0})
    assert training.findings() == []
