"""LSS001: probabilities where the loss takes logits, or the reverse."""

from __future__ import annotations

import math

import pytest
from tests.detect.courses import CROSS_ENTROPY, training

from undertow.detect.rules.loss.wrong_loss_input import WrongLossInput
from undertow.schema import LossKind, Severity


def test_probabilities_are_found_at_the_second_measured_step() -> None:
    run = training(WrongLossInput).run(1, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 1.0})
    assert run.codes() == []
    run.run(3)  # not measured
    run.run(1, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 1.0})
    (finding,) = run.findings()
    assert (finding.code, finding.first_step, finding.detected_step) == ("LSS001", 0, 4)
    assert finding.severity is Severity.SEVERE
    assert finding.layers == ("head",)


def test_it_ends_when_the_input_is_right_again() -> None:
    run = training(WrongLossInput).run(3, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 1.0})
    run.run(2, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 0.0})
    assert [entry[0] for entry in run.log] == ["opened", "closed"]


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_right_or_unknown_input_is_silent(value: float) -> None:
    scalars = {**CROSS_ENTROPY, "loss_input_is_probability": value, "loss_input_is_logit": value}
    assert training(WrongLossInput).run(20, scalars=scalars).codes() == []


def test_of_two_heads_the_one_that_the_loss_was_given_is_named() -> None:
    scalars = {**CROSS_ENTROPY, "loss_input_is_probability": 1.0}
    run = training(WrongLossInput)
    source = float(run.layers["second.bias"].id)
    (finding,) = run.run(2, scalars={**scalars, "loss_layer": source}).findings()
    assert finding.layers[-1] == "second"
    (finding,) = training(WrongLossInput).run(2, scalars=scalars).findings()
    assert finding.layers == ("head",)


def test_logits_where_log_probabilities_belong() -> None:
    scalars = {"loss_kind": LossKind.NEGATIVE_LOG_LIKELIHOOD, "loss_input_is_logit": 1.0}
    (finding,) = training(WrongLossInput).run(2, scalars=scalars).findings()
    assert finding.evidence[0].quantity == "loss_input_is_logit"
    assert "log-probabilities" in finding.summary


def test_a_softmax_over_another_dimension() -> None:
    (finding,) = training(WrongLossInput).run(2, scalars={**CROSS_ENTROPY, "loss_input_is_logit": 1.0}).findings()
    assert "dimension" in finding.summary


@pytest.mark.parametrize(
    ("changes", "found"),
    [({}, ["LSS001"]), ({"loss": 0.3}, []), ({"loss_kind": LossKind.CROSS_ENTROPY}, [])],
    ids=["targets below zero", "a finite loss", "another loss"],
)
def test_targets_of_a_divergence_that_are_no_probabilities(changes: dict[str, float], found: list[str]) -> None:
    scalars = {"loss": math.nan, "loss_kind": LossKind.DIVERGENCE, "loss_input_is_logit": 0.0, **changes}
    run = training(WrongLossInput).run(3, scalars=scalars)
    assert run.codes() == found
    if found:
        assert [remedy.id for remedy in WrongLossInput.remedies_for(run.findings()[0])] == ["soften-the-targets"]
    sampled = training(WrongLossInput)
    for streams in (("gradient",), ("weight",), ("gradient",)):  # where gradients were not measured, nobody can tell
        sampled.run(1, scalars=scalars, streams=streams)
    assert sampled.codes() == found
    broken = training(WrongLossInput).run(3, scalars=scalars, gradient_nonfinite_count=2.0)
    assert broken.codes() == []  # then the prediction may be what is not finite
