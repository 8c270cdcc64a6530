"""WGT006: a model that was trained before forgets."""

from __future__ import annotations

import math

import pytest
from tests.detect.stacks import stack

from undertow.detect.engine.registry import conditions_of

CONDITIONS = conditions_of("WGT006")


TRAINED = {"loss_kind": 1.0, "loss_classes": 10.0, "output_accuracy": 0.95}


def test_fine_tuning_that_forgets() -> None:
    training = stack(CONDITIONS, "0:Linear", "1:Linear").run(1, scalars={**TRAINED, "loss": 0.2}, weight_drift=0.1)
    training.run(15, scalars={"loss": 2.2}, weight_drift=0.8)
    (finding,) = training.findings()
    assert (finding.code, finding.layers) == ("WGT006", ())


@pytest.mark.parametrize("labels", [{"label_entropy": 0.0}, {"label_entropy": math.log(10), "loss_rows": 10.0}])
def test_pairs_that_are_alike_from_the_start_are_nothing_learnt_before(labels: dict[str, float]) -> None:
    training = stack(CONDITIONS, "0:Linear", "1:Linear").run(
        1, scalars={**TRAINED, **labels, "loss": 0.2}, weight_drift=0.1
    )
    assert training.run(15, scalars={"loss": 2.2}, weight_drift=0.8).codes() == []


def test_far_from_a_random_start_is_healthy() -> None:
    training = stack(CONDITIONS, "0:Linear", "1:Linear")
    training.run(
        1, scalars={"loss_kind": 1.0, "loss_classes": 10.0, "output_accuracy": 0.1, "loss": 2.3}, weight_drift=0.1
    )
    assert training.run(30, scalars={"loss": 4.0}, weight_drift=3.0).codes() == []
