"""ACT001 dead-outputs."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.activations.dead_outputs import DeadOutputs


def test_a_relu_on_the_logits_is_named_before_its_layer() -> None:
    training = stack(DeadOutputs, "0:Linear", "1:ReLU", "2:Linear", "3:ReLU")
    training.run(
        3, scalars={"loss_kind": 1.0}, activation_zero_fraction={"3": 1.0}, activation_dead_fraction={"3": 1.0}
    )
    assert training.findings()[0].layers == ("3", "2")


def test_a_content_hinge_is_healthy() -> None:
    training = stack(DeadOutputs, "0:Linear", "1:ReLU", "2:Linear", "3:ReLU")
    training.run(
        5, scalars={"loss_kind": 0.0}, activation_zero_fraction={"3": 1.0}, activation_dead_fraction={"3": 1.0}
    )
    assert training.codes() == []
