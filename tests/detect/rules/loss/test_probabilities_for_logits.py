"""LSS001: a softmax or a sigmoid is taken twice."""

from __future__ import annotations

import math

import pytest
from tests.detect.courses import CROSS_ENTROPY, training

from undertow.detect.rules.loss.logits_for_probabilities import LogitsForProbabilities
from undertow.detect.rules.loss.probabilities_for_logits import ProbabilitiesForLogits
from undertow.detect.rules.loss.softmax_over_wrong_dimension import SoftmaxOverWrongDimension
from undertow.schema import Severity

INPUTS = (ProbabilitiesForLogits, LogitsForProbabilities, SoftmaxOverWrongDimension)


def test_probabilities_are_found_at_the_second_measured_step() -> None:
    run = training(*INPUTS).run(1, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 1.0})
    assert run.codes() == []
    run.run(3)  # not measured
    run.run(1, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 1.0})
    (finding,) = run.findings()
    assert (finding.code, finding.first_step, finding.detected_step) == ("LSS001", 0, 4)
    assert finding.severity is Severity.SEVERE
    assert finding.layers == ("head",)


def test_it_ends_when_the_input_is_right_again() -> None:
    run = training(*INPUTS).run(3, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 1.0})
    run.run(2, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 0.0})
    assert [entry[0] for entry in run.log] == ["opened", "closed"]


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_right_or_unknown_input_is_silent(value: float) -> None:
    scalars = {**CROSS_ENTROPY, "loss_input_is_probability": value, "loss_input_is_logit": value}
    assert training(*INPUTS).run(20, scalars=scalars).codes() == []


def test_of_two_heads_the_one_that_the_loss_was_given_is_named() -> None:
    scalars = {**CROSS_ENTROPY, "loss_input_is_probability": 1.0}
    run = training(ProbabilitiesForLogits)
    source = float(run.layers["second.bias"].id)
    (finding,) = run.run(2, scalars={**scalars, "loss_layer": source}).findings()
    assert finding.layers[-1] == "second"
    (finding,) = training(ProbabilitiesForLogits).run(2, scalars=scalars).findings()
    assert finding.layers == ("head",)
