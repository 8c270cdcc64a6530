"""NUM002: the loss is NaN or infinite."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import Training

from undertow.detect.rules.numerics.nonfinite_loss import NonfiniteLoss
from undertow.explain.remedies import with_remedies
from undertow.schema import Evidence, Finding, Severity
from undertow.schema.codes import CODES


def test_loss() -> None:
    training = Training().run(3).run(2, scalars={"loss": math.inf}).run(1)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("NUM002", Severity.CRITICAL, ())
    assert (finding.first_step, finding.last_step, finding.ongoing) == (3, 4, False)


def test_loss_names_the_first_module_that_was_non_finite() -> None:
    training = Training().run(1, scalars={"loss": math.nan}, activation_nonfinite_count={"second": 4.0, "third": 9.0})
    assert training.findings()[0].layers == ("second",)


@pytest.mark.parametrize(("weights", "remedy"), [(0.0, "clean-the-inputs"), (3.0, "loss-in-log-space")])
def test_what_the_first_layer_is_given_is_looked_at_first(weights: float, remedy: str) -> None:
    training = Training()
    bad = {"first": 4.0, "second": 4.0}
    training.run(1, scalars={"loss": math.nan}, activation_nonfinite_count=bad, weight_nonfinite_count=weights)
    (finding,) = [one for one in training.findings() if one.code == "NUM002"]
    assert with_remedies(finding).remedies[0].id == remedy


def test_an_operation_that_made_it_of_finite_values_is_guarded_first() -> None:
    def first_remedy(quantity: str) -> str:
        evidence = (Evidence(quantity, "head", None, None, ""),)
        finding = Finding(
            "NUM002", CODES["NUM002"], Severity.CRITICAL, ("head",), 1, 1, 1, True, 1.0, "", evidence,
        )  # fmt: skip
        return NonfiniteLoss.remedies_for(finding)[0].id

    assert first_remedy("unsafe_operation") == "guard-the-operation"
    assert first_remedy("first_nonfinite") == "guard-the-operation"
    assert first_remedy("loss") == "loss-in-log-space"
    assert first_remedy("nonfinite_input") == "clean-the-inputs"


def test_loss_of_a_skipped_step_is_a_remark() -> None:
    training = Training().run(1, scalars={"loss": math.inf, "step_skipped": 1.0})
    assert training.alarms() == []
    assert ("NUM002", "nonfinite-loss") in [(found.code, found.variant) for found in training.findings()]
