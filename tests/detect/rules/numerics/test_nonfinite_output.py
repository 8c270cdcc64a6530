"""NUM004: a module puts out NaN or infinity, and loss or gradients catch it."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import watched_by

from undertow.detect.rules.numerics.nonfinite_output import NonfiniteOutput
from undertow.schema import Severity

BAD = {"second": 3.0, "second_relu": 3.0, "third": 64.0, "head": 64.0}


def test_the_first_module_that_puts_out_nan_is_named() -> None:
    training = watched_by(NonfiniteOutput).run(5)
    training.run(1, activation_nonfinite_count=BAD, scalars={"loss": math.nan})
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("NUM004", Severity.CRITICAL, ("second",))
    assert (finding.first_step, finding.confidence) == (5, 1.0)
    training.run(1)
    assert not training.findings()[0].ongoing


def test_the_first_module_of_all_was_given_it() -> None:
    training = watched_by(NonfiniteOutput).run(5)
    training.run(1, activation_nonfinite_count={"first": 9.0, **BAD}, scalars={"loss": math.nan})
    (finding,) = training.findings()
    assert finding.layers == ("first",)
    assert "nonfinite_input" in [one.quantity for one in finding.evidence]


def test_a_finite_loss_with_bad_gradients_is_harm() -> None:
    training = watched_by(NonfiniteOutput)
    training.run(1, activation_nonfinite_count=BAD, gradient_nonfinite_count=1.0)
    assert training.alarms() == ["NUM004"]


def test_outputs_of_poisoned_weights_are_no_news() -> None:
    training = watched_by(NonfiniteOutput)
    training.run(1, weight_nonfinite_count=1.0)
    training.run(3, activation_nonfinite_count=BAD, scalars={"loss": math.nan}, weight_nonfinite_count=1.0)
    assert training.findings() == []


def test_a_module_whose_weights_a_function_uses_is_suspected_too() -> None:
    training = watched_by(NonfiniteOutput)
    counts = {"second": math.nan, "third": 3.0, "head": 64.0}
    training.run(1, activation_nonfinite_count=counts, scalars={"loss": math.nan})
    (finding,) = training.findings()
    assert finding.layers == ("second", "third")
    assert finding.confidence < 1


@pytest.mark.parametrize("change", [{"scalars": {"loss": 1.0}}, {"scalars": {"loss": math.nan, "step_skipped": 1.0}}])
def test_masks_and_skipped_steps_are_only_noted(change: dict[str, dict[str, float]]) -> None:
    training = watched_by(NonfiniteOutput).run(2)
    training.run(3, activation_nonfinite_count=BAD, **change)
    assert [finding.severity for finding in training.findings()] == [Severity.INFO]
