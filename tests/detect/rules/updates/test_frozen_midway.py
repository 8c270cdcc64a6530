"""UPD003 frozen-midway."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.detect.building import Training


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({}, {}, True),
        ({}, {"scalars": {"lr": 1e-4}}, False),
        ({}, {"gradient_optimizer": {"first": -1.0}}, False),
        ({}, {"gradient_optimizer": 1.0}, False),
        ({"gradient_state": {"second": 2.0}}, {}, False),
    ],
    ids=["nothing else changes", "another rate", "an optimizer for the rest", "a new optimizer", "others are released"],
)
def test_layers_frozen_while_training(before: dict[str, Any], after: dict[str, Any], found: bool) -> None:
    usual: dict[str, Any] = {"scalars": {"lr": 0.01}, "weight_kurtosis": 0.5}
    training = Training().run(3, **usual | before)
    training.run(45, **usual | {"gradient_state": {"first": 2.0}, "update_norm": {"first": math.nan}} | after)
    assert ("UPD003" in training.alarms()) is found
    if found:
        (finding,) = [one for one in training.findings() if one.code == "UPD003"]
        assert (finding.first_step, finding.layers) == (3, ("first.weight", "first.bias"))


def test_layers_frozen_one_after_the_other_are_frozen_by_plan() -> None:
    training = Training().run(20)
    for frozen in (("first",), ("first", "second")):
        resting = dict.fromkeys(frozen, 2.0)
        training.run(30, gradient_state=resting, update_norm=dict.fromkeys(frozen, math.nan))
    assert "UPD003" not in training.alarms()


@pytest.mark.parametrize(("left", "found"), [(0.05, False), (0.8, True)])
def test_layers_frozen_when_nearly_all_is_learnt_are_a_remark(left: float, found: bool) -> None:
    training = Training().run(20)
    for step in range(60):
        frozen = {"gradient_state": {"first": 2.0}, "update_norm": {"first": math.nan}} if step > 12 else {}
        training.run(1, scalars={"loss": left}, **frozen)
    assert ("UPD003" in training.alarms()) is found


def test_layers_that_are_frozen_and_released_again() -> None:
    training = Training().run(3).run(2, gradient_state={"first": 2.0}).run(9)
    assert "UPD003" not in training.run(9, gradient_state={"first": 2.0}).alarms()
