"""GRD009: another term of the loss drowns the error of the predictions."""

from __future__ import annotations

import pytest
from tests.detect.building import Training, watched_by

from undertow.detect.rules.gradients.drowned_term import DrownedTerm
from undertow.schema import LossKind, LossReduction

NUMBERS = {"loss_kind": LossKind.MEAN_SQUARE, "loss_factor": 1.0, "loss_reduction": LossReduction.MEAN,
           "prediction_mean": 0.0, "prediction_std": 0.5, "target_mean": 0.5, "target_std": 1.0}  # fmt: skip
LABELS = {"loss_kind": LossKind.CROSS_ENTROPY, "loss_factor": 0.1, "loss_reduction": LossReduction.MEAN,
          "loss_classes": 6.0, "output_max_probability": 0.25}  # fmt: skip


def run(steps: int, loss: float, facts: dict[str, float], training: Training | None = None) -> Training:
    return (training or watched_by(DrownedTerm)).run(steps, scalars={**facts, "loss": loss})


@pytest.mark.parametrize("facts", [NUMBERS, LABELS, {**NUMBERS, "loss_kind": LossKind.ABSOLUTE}])
def test_an_error_that_is_nothing_beside_the_loss(facts: dict[str, float]) -> None:
    training = run(4, 2000.0, facts)
    assert training.codes() == []
    (finding,) = run(1, 2000.0, facts, training).findings()
    assert (finding.variant, finding.first_step, finding.detected_step) == ("drowned-term", 0, 4)
    assert finding.severity.is_alarm


@pytest.mark.parametrize("facts", [{**LABELS, "output_max_probability": 0.99},
                                   {**NUMBERS, "loss_reduction": LossReduction.SUM},
                                   {**NUMBERS, "loss_kind": LossKind.UNKNOWN}])  # fmt: skip
def test_where_the_error_may_be_of_any_size_it_is_silent(facts: dict[str, float]) -> None:
    assert run(20, 2000.0, facts).codes() == []


def test_an_error_that_is_learnt_is_silent() -> None:
    training = run(3, 30.0, NUMBERS)
    assert run(20, 30.0, {**NUMBERS, "prediction_mean": 0.5, "target_std": 1e-3}, training).codes() == []
