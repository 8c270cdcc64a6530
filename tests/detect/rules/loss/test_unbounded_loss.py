"""LSS003: nothing keeps the loss from falling for ever."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from tests.detect.courses import training

from undertow.detect.rules.loss.negated_loss import NegatedLoss
from undertow.detect.rules.loss.unbounded_loss import UnboundedLoss

SIGNS = (NegatedLoss, UnboundedLoss)


def test_a_loss_without_a_floor_by_its_form() -> None:
    run = training(*SIGNS).run(2, scalars={"loss": 4.0, "loss_without_floor": 1.0})
    (finding,) = run.findings()
    assert (finding.code, finding.first_step, finding.detected_step) == ("LSS003", 0, 1)
    assert training(*SIGNS).run(5, scalars={"loss": 4.0, "loss_without_floor": 0.0}).codes() == []


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("exponential", lambda step: 0.5 - 0.5 * 1.05**step),
        ("linear", lambda step: 1.0 - 0.2 * step),
        ("quadratic", lambda step: 1.0 - 0.01 * step**2),
        ("likelihood", lambda step: 0.05 - 4 * (1 - math.exp(-step / 40))),
        ("from nothing", lambda step: -0.01 * step),
    ],
)
def test_a_loss_that_falls_ever_faster(name: str, loss: Callable[[int], float]) -> None:
    run = training(*SIGNS)
    for step in range(200):
        run.run(1, scalars={"loss": loss(step)})
    assert run.codes() == (["LSS003"] if name == "exponential" else [])
