"""GRD004: a gradient is exactly zero."""

from __future__ import annotations

import pytest
from tests.detect.building import Training

from undertow.schema import Severity


def test_zero_gradient_of_a_dead_relu_is_placed_at_the_relu() -> None:
    # The bias of `second` keeps its ReLU off: zeros arrive at `third`, whose bias alone still learns.
    zero = {"first": 1.0, "second": 1.0, "third.weight": 1.0}
    silent = {"second_relu": 1.0}
    training = Training().run(9, gradient_zero_fraction=zero, activation_zero_fraction=silent)
    assert training.findings() == []
    training.run(3, gradient_zero_fraction=zero, activation_zero_fraction=silent)
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("GRD004", Severity.SEVERE)
    assert finding.layers[:2] == ("second.weight", "second.bias")
    assert set(finding.layers) == {"first.weight", "first.bias", "second.weight", "second.bias", "third.weight"}
    assert (finding.first_step, finding.detected_step) == (0, 9)
    assert any(evidence.layer == "second_relu" for evidence in finding.evidence)


def test_zero_gradient_without_activations_looks_before_the_zero_input() -> None:
    zero = {"first": 1.0, "second": 1.0, "third.weight": 1.0}
    training = Training().run(10, gradient_zero_fraction=zero, streams=("gradient",))
    assert training.findings()[0].layers[0] == "second.weight"


def test_one_layer_erased_by_a_hook() -> None:
    training = Training().run(10, gradient_zero_fraction={"third.weight": 1.0})
    assert training.findings()[0].layers == ("third.weight",)


def test_everything_zero_takes_longer_but_is_seen() -> None:
    training = Training().run(19, gradient_zero_fraction=1.0)
    assert training.findings() == []
    assert training.run(1, gradient_zero_fraction=1.0).alarms() == ["GRD004"]


@pytest.mark.parametrize(
    "healthy",
    [
        {"gradient_zero_fraction": {"third.bias": 1.0}},  # the key bias of attention
        {"gradient_zero_fraction": {"third": 1.0}, "scalars": {"loss": 0.0}},  # nothing left to learn
        {"gradient_zero_fraction": {"third": 1.0}, "activation_calls": {"third": 0.0}},  # an expert without tokens
        {"gradient_zero_fraction": {"third": 0.999}},  # a sparse embedding
    ],
)
def test_healthy_zeros_raise_no_alarm(healthy: dict[str, object]) -> None:
    assert Training().run(60, **healthy).alarms() == []


def test_zero_initialised_branches_are_silent() -> None:
    training = Training().run(3, gradient_zero_fraction={"second": 1.0}).run(50)
    assert training.findings() == []


def test_a_block_skipped_at_random_is_silent_between_two_looks_at_the_modules() -> None:
    training = Training().run(2)
    training.run(15, gradient_zero_fraction={"second": 1.0}, streams=("gradient", "update"))
    training.run(1, gradient_zero_fraction={"second": 1.0}, activation_calls={"second": 0.0})
    training.run(60, gradient_zero_fraction={"second": 1.0}, streams=("gradient", "update"))
    assert training.findings() == []
    # Seen running with a zero gradient, it is no longer an excuse.
    training.run(1, gradient_zero_fraction={"second": 1.0})
    assert training.alarms() == ["GRD004"]


def test_a_flow_that_is_cut_after_a_steady_start_is_seen_at_once() -> None:
    cut = {"first": 1.0, "second": 1.0}
    training = Training().run(20).run(2, gradient_zero_fraction=cut)
    assert training.alarms() == []
    training.run(1, gradient_zero_fraction=cut, streams=("gradient",))
    (finding,) = training.findings()
    assert (finding.code, finding.layers[0], finding.first_step) == ("GRD004", "second.weight", 20)


def test_one_layer_that_turns_zero_after_a_steady_start_takes_a_little_longer() -> None:
    training = Training().run(20).run(4, gradient_zero_fraction={"second": 1.0})
    assert training.alarms() == []
    assert training.run(1, gradient_zero_fraction={"second": 1.0}).alarms() == ["GRD004"]


def test_a_branch_that_is_used_now_and_then_is_no_steady_flow() -> None:
    training = Training()
    for _ in range(6):
        training.run(8).run(6, gradient_zero_fraction={"second": 1.0})
    assert training.alarms() == []


def test_adapters_of_zeros_alone_are_seen_before_long() -> None:
    training = Training().run(4, gradient_zero_fraction=1.0, weight_norm={"second": 0.0})
    assert "GRD004" not in training.alarms()
    training.run(1, gradient_zero_fraction=1.0, weight_norm={"second": 0.0})
    assert "GRD004" in training.alarms()


def test_a_gradient_that_is_erased_before_the_step() -> None:
    erased = {"gradient_max_abs": 0.01, "stepped_gradient_max_abs": {"second.weight": 0.0}}
    training = Training().run(3, **erased)
    assert training.codes() == []
    (finding,) = training.run(1, **erased).findings()
    assert (finding.code, finding.layers) == ("GRD004", ("second.weight",))
    assert "between the backward pass and the optimizer's step" in finding.summary
    assert not training.run(1).findings()[0].ongoing


def test_a_bias_alone_is_silent() -> None:
    assert Training().run(60, gradient_zero_fraction={"third.bias": 1.0}).codes() == []  # the key bias of attention
