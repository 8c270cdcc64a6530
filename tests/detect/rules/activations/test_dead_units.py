"""ACT001 dead-units."""

from __future__ import annotations

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.activations.dead_units import DeadUnits
from undertow.schema import Severity

RELUS = ("0:Linear", "1:ReLU", "2:Linear", "3:ReLU", "4:Linear")
ALIVE = {"activation_zero_fraction": 0.5, "activation_dead_fraction": 0.1}


def test_names_the_layer_that_kills_and_its_relu() -> None:
    training = stack(DeadUnits, *RELUS).run(3, **ALIVE)
    assert training.codes() == []
    training.run(2, activation_zero_fraction={"1": 0.5, "3": 1.0}, activation_dead_fraction=0.1)
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.first_step) == ("ACT001", ("2", "3"), 3)
    assert finding.severity is Severity.SEVERE


def test_the_first_dead_layer_is_the_culprit() -> None:
    training = stack(DeadUnits, *RELUS).run(4, activation_zero_fraction=1.0)
    assert training.findings()[0].layers == ("0", "1")


def test_ends_when_units_speak_again() -> None:
    training = stack(DeadUnits, *RELUS).run(3, activation_zero_fraction=1.0).run(1, **ALIVE)
    assert [finding.ongoing for finding in training.findings()] == [False]


def test_one_empty_batch_is_not_enough() -> None:
    training = stack(DeadUnits, *RELUS).run(1, activation_zero_fraction=1.0).run(5, **ALIVE)
    assert training.codes() == []


def test_sparse_but_alive_is_healthy() -> None:
    training = stack(DeadUnits, *RELUS)
    training.run(40, scalars={"loss_rows": 64.0}, activation_zero_fraction=0.95, activation_dead_fraction=0.6)
    assert training.codes() == []


def test_nine_of_ten_units_silent_for_a_thousand_samples() -> None:
    training = stack(DeadUnits, *RELUS)
    for frame in range(10):  # now and then another one speaks
        dead = {"1": 0.1, "3": 0.99 - 0.005 * frame}
        training.run(1, scalars={"loss_rows": 100.0}, activation_zero_fraction=0.97, activation_dead_fraction=dead)
    (finding,) = training.findings()
    assert (finding.layers, finding.severity) == (("2", "3"), Severity.MODERATE)
    assert finding.detected_step == 9


def test_units_that_none_of_many_samples_wakes() -> None:
    training = stack(DeadUnits, *RELUS)
    silent = {"activation_zero_fraction": 0.97, "activation_dead_fraction": {"1": 0.1, "3": 0.94}}
    training.run(5, scalars={"loss_rows": 48.0}, **silent)
    assert training.codes() == []
    training.run(1, scalars={"loss_rows": 48.0}, **silent)
    (finding,) = training.findings()
    assert (finding.layers, finding.detected_step) == (("2", "3"), 5)


@pytest.mark.parametrize(("bias", "codes"), [(-9.0, ["ACT001"]), (-0.5, [])])
def test_outputs_that_biases_hold_down(bias: float, codes: list[str]) -> None:
    training = stack(DeadUnits, *RELUS)
    measured = {"activation_zero_fraction": {"3": 0.97}, "activation_dead_fraction": 0.0, "activation_std": 0.8}
    biases = {"weight_mean": {"2.bias": 0.8 * bias}, "weight_max_abs": {"2.bias": abs(bias)}}
    training.run(2, **measured, **biases, activation_sample_spread=0.5)
    assert training.codes() == codes


def test_the_number_of_samples_is_remembered() -> None:
    training = stack(DeadUnits, *RELUS)
    dead = {"activation_zero_fraction": 0.97, "activation_dead_fraction": 0.94}
    training.run(1, scalars={"loss_rows": 100.0}, **dead).run(9, **dead)
    assert training.codes() == ["ACT001"]


def test_without_the_number_of_samples_it_waits_for_twenty_steps() -> None:
    training = stack(DeadUnits, *RELUS)
    training.run(19, activation_zero_fraction=0.97, activation_dead_fraction=0.95)
    assert training.codes() == []
    assert training.run(1, activation_zero_fraction=0.97, activation_dead_fraction=0.95).codes() == ["ACT001"]


def test_leaky_units_and_dropouts_are_not_judged() -> None:
    training = stack(DeadUnits, "0:Linear", "1:LeakyReLU", "2:Dropout", "3:Linear")
    assert training.run(5, activation_zero_fraction=1.0).codes() == []


def test_a_relu_without_a_module_is_told_by_its_layer() -> None:
    training = stack(DeadUnits, "a:Linear", "b:Linear", "c:Linear")
    training.run(2, activation_zero_fraction=0.0, activation_dead_fraction={"a": 0.1, "b": 1.0, "c": 0.0})
    (finding,) = training.findings()
    assert (finding.layers, finding.severity) == (("b",), Severity.SEVERE)
    assert "the ReLU behind b" in finding.summary


def test_a_layer_that_starts_at_zero_has_no_dead_units() -> None:
    training = stack(DeadUnits, "a:Linear", "b:Linear", "c:Linear")
    training.run(30, activation_zero_fraction={"b": 1.0}, activation_dead_fraction={"b": 1.0})
    assert training.codes() == []


def test_a_relu_on_the_logits_is_named_before_its_layer() -> None:
    training = stack(DeadUnits, "0:Linear", "1:ReLU", "2:Linear", "3:ReLU")
    training.run(
        3, scalars={"loss_kind": 1.0}, activation_zero_fraction={"3": 1.0}, activation_dead_fraction={"3": 1.0}
    )
    (finding,) = training.findings()
    assert finding.layers == ("3", "2")
    assert DeadUnits.remedies_for(finding)[0].id == "free-the-last-layer"


def test_a_content_hinge_is_healthy() -> None:
    training = stack(DeadUnits, "0:Linear", "1:ReLU", "2:Linear", "3:ReLU")
    training.run(
        5, scalars={"loss_kind": 0.0}, activation_zero_fraction={"3": 1.0}, activation_dead_fraction={"3": 1.0}
    )
    assert training.codes() == []
