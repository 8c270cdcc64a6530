"""ACT003 constant-output."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.activations.constant_output import ConstantOutput
from undertow.schema import GraphSource, LayerGraph


def test_samples_that_come_in_apart_and_go_out_alike() -> None:
    training = stack(ConstantOutput, "a:Linear", "b:Linear", "c:Linear")
    spread = {"a": 0.9, "b": 0.1, "c": 1e-13}
    training.run(4, activation_std=1.0, activation_sample_spread=spread)
    assert training.codes() == []
    (finding,) = training.run(1, activation_std=1.0, activation_sample_spread=spread).findings()
    assert (finding.code, finding.layers, finding.first_step) == ("ACT003", ("b",), 0)


def test_a_summary_that_is_added_to_every_sample_is_healthy() -> None:
    training = stack(ConstantOutput, "a:Linear", "summary:Linear", "head:Linear")
    nodes = training.graph.nodes
    training.graph = LayerGraph(nodes, ((0, 1), (1, 2), (0, 2)), GraphSource.AUTOGRAD)
    training.engine.set_layers(training.layers, training.graph)
    spread = {"a": 0.9, "summary": 1e-13, "head": 0.5}
    assert training.run(9, activation_std=1.0, activation_sample_spread=spread).codes() == []


def test_learnt_queries_and_a_head_that_starts_at_zero_are_healthy() -> None:
    training = stack(ConstantOutput, "queries:Linear", "b:Linear", "head:Linear")
    alike = {"queries": 1e-13, "b": 0.5, "head": 1e-13}
    training.run(3, activation_std=1.0, activation_sample_spread=alike)
    training.run(9, activation_std=1.0, activation_sample_spread={**alike, "head": 0.3})
    assert training.codes() == []
