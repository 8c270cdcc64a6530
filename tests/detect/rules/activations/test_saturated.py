"""ACT002 saturated."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.activations.saturated import Saturated


def test_names_hidden_functions_and_what_feeds_them() -> None:
    training = stack(Saturated, "0:Linear", "1:Tanh", "2:Linear", "3:Tanh", "4:Linear")
    training.run(2, activation_saturated_fraction=0.1)
    training.run(1, activation_saturated_fraction={"1": 0.9, "3": 0.2})
    assert training.codes() == []
    training.run(1, activation_saturated_fraction={"1": 0.9, "3": 0.2})
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.first_step) == ("ACT002", ("0", "1"), 2)
    training.run(1, activation_saturated_fraction=0.1)
    assert not training.findings()[0].ongoing


def test_units_may_decide_when_nearly_all_is_learnt() -> None:
    training = stack(Saturated, "0:Linear", "1:Tanh", "2:Linear")
    training.run(9, scalars={"loss": 1.0}, activation_saturated_fraction=0.1)
    training.run(12, scalars={"loss": 0.01}, activation_saturated_fraction=0.1)
    assert training.run(9, scalars={"loss": 0.01}, activation_saturated_fraction=0.9).codes() == []


def test_a_function_without_a_module_is_told_by_its_layer() -> None:
    training = stack(Saturated, "a:Linear", "b:Linear", "c:Linear")
    training.run(2, activation_saturated_fraction={"b": 0.9})
    (finding,) = training.findings()
    assert finding.layers == ("b",)
    assert "the functions behind b" in finding.summary


def test_the_last_function_may_saturate() -> None:
    training = stack(Saturated, "0:Linear", "1:Tanh", "2:Linear", "3:Sigmoid")
    assert training.run(9, activation_saturated_fraction={"3": 0.99}).codes() == []


def test_what_nobody_asks_for_may_be_saturated() -> None:
    for norm, found in ((0.0, []), (0.5, ["ACT002"])):
        training = stack(Saturated, "0:Linear", "1:Tanh", "2:Linear", "head:Linear")
        saturated = {"activation_saturated_fraction": {"1": 0.9}, "gradient_norm": {"2": norm, "head": 1.0}}
        assert training.run(4, **saturated).codes() == found


def test_a_module_that_gives_its_limit_for_whatever_its_layer_says() -> None:
    for mean, found in ((1.0, ["ACT002"]), (0.7, [])):
        training = stack(Saturated, "gate:Gate", "gate.dense:Linear", "head:Linear")
        facts = {"activation_std": {"gate": 0.0, "gate.dense": 1.5}, "activation_max_abs": {"gate": mean}}
        training.run(2, activation_mean={"gate": mean, "gate.dense": 0.0}, **facts)
        assert training.codes() == found
