"""UPD003 unmoved-weights."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import Training
from tests.detect.random_weights import random_weights

from undertow.schema import Severity


def test_a_weight_that_the_optimizer_does_not_move() -> None:
    training = Training().run(4, update_norm={"third.weight": 0.0})
    assert training.findings() == []
    training.run(2, update_norm={"third.weight": 0.0})
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("UPD003", Severity.SEVERE, ("third.weight",))
    training.run(1)
    assert not training.findings()[0].ongoing


@pytest.mark.parametrize(
    "healthy",
    [
        {"scalars": {"lr": 0.0}, "update_norm": 0.0},
        {"scalars": {"step_skipped": 1.0}, "update_norm": {"third": 0.0}},
        {"update_norm": 0.0},  # nothing moves at all: an optimizer that accumulates by itself
        {"update_norm": {"third": 0.0}, "stepped_gradient_max_abs": {"third": 0.0}},
        {"update_norm": {"third": 0.0}, "stepped_gradient_max_abs": {"third": 1e-9}},  # rounds away in float32
        {"update_norm": {"third": math.nan}},
    ],
)
def test_standing_still_for_a_reason_raises_no_alarm(healthy: dict[str, object]) -> None:
    training = Training().run(9, **healthy)
    assert [code for code in training.alarms() if code != "NUM001"] == []


def test_updates_that_round_away_in_low_precision_say_so() -> None:
    training = Training(dtype="torch.bfloat16").run(49, update_norm={"third": 0.0})
    assert training.findings() == []
    training.run(1, update_norm={"third": 0.0})
    (finding,) = training.findings()
    assert finding.layers == ("third.weight",)
    assert finding.severity is Severity.MODERATE
    assert "bfloat16" in finding.summary


def test_a_group_with_a_rate_of_zero_is_named_as_the_reason() -> None:
    training = Training().run(9, update_norm={"third": 0.0}, scalars={"lr_0": 0.1, "lr_1": 0.0})
    (finding,) = training.findings()
    assert finding.severity is Severity.MILD
    assert "learning rate of zero" in finding.summary


@pytest.mark.parametrize(
    ("at_rest", "severity"), [(("head",), Severity.MODERATE), (("first", "second"), Severity.MILD)]
)
def test_a_group_with_a_rate_of_zero_that_was_never_trained(at_rest: tuple[str, ...], severity: Severity) -> None:
    resting = {**random_weights(), "update_norm": dict.fromkeys(at_rest, 0.0)}
    training = Training().run(9, scalars={"lr_0": 0.1, "lr_1": 0.0}, **resting)
    (finding,) = [finding for finding in training.findings() if finding.code == "UPD003"]
    assert finding.severity is severity


def test_new_weights_that_rest_for_long_with_a_rate_of_zero() -> None:
    resting = {**random_weights(), "update_norm": {"first": 0.0, "second": 0.0}}
    training = Training().run(110, scalars={"lr_0": 0.1, "lr_1": 0.0}, **resting)
    (finding,) = [finding for finding in training.findings() if finding.code == "UPD003"]
    assert finding.severity is Severity.MODERATE


def test_no_weight_has_ever_moved() -> None:
    training = Training().run(9, update_norm=0.0)
    assert training.alarms() == []
    (finding,) = [one for one in training.run(1, update_norm=0.0).findings() if one.severity.is_alarm]
    assert (finding.code, finding.layers, finding.severity) == ("UPD003", (), Severity.CRITICAL)
    assert "zero_grad" in finding.summary
    (finding,) = [one for one in training.run(1).findings() if one.severity.is_alarm]
    assert not finding.ongoing


def test_where_all_others_hardly_move_what_stands_still_rounds_away() -> None:
    training = Training().run(9, update_norm={"third": 0.0}, update_ratio=1e-8)
    assert "UPD003" not in training.alarms()
