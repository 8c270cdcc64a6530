"""OPT007: the learning rate is too high, or a warm-up is missing."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.detect.courses import OPT007, falling, follow, noisy, training

from undertow.schema import LossKind, Severity


def test_huge_updates_and_a_loss_above_the_untrained_one() -> None:
    run = follow(training(*OPT007), [2.3, 5.0, 9.0], update_ratio=0.9, update_norm=9.0)
    (finding,) = run.findings()
    assert (finding.severity, finding.first_step, finding.detected_step) == (Severity.SEVERE, 0, 2)
    assert finding.variant == "learning-rate-too-high"


def test_huge_updates_while_the_loss_falls_are_silent() -> None:
    assert follow(training(*OPT007), falling(50), update_ratio=0.9, update_norm=9.0).codes() == []


def test_a_loss_that_leaps_before_any_large_update_is_not_the_rates_fault() -> None:
    run = follow(training(*OPT007), falling(60))
    follow(run, [5000.0, 9000.0, 800.0, 2.3, 2.3], update_ratio=0.9, update_norm=9.0)
    assert run.codes() == []


def test_a_loss_that_never_comes_back_from_such_a_leap_is_not_the_rates_fault() -> None:
    run = follow(training(*OPT007), [2.3], update_ratio=0.9, update_norm=9.0)  # large at the start only
    follow(run, falling(60))
    follow(run, [5e6, 9e8, *[math.nan] * 40], update_ratio=0.9, update_norm=9.0)
    assert run.codes() == []


def test_an_implausible_first_loss_is_left_to_other_rules() -> None:
    scalars = {"loss_kind": 1.0, "loss_classes": 10.0}
    run = training(*OPT007)
    for loss in (1e5, 4e5, 9e5, 1e6):
        run.run(1, scalars={"loss": loss, **scalars}, update_ratio=0.9, update_norm=9.0)
    assert run.codes() == []


def test_one_leap_at_the_start_and_nothing_learnt_since() -> None:
    for losses, alarms in ((noisy([2.3] * 40, 0.01), ["OPT007"]), (falling(40, to=0.5), [])):
        run = follow(training(*OPT007), [2.3, 4.0], update_ratio=0.5, update_norm=5.0)
        assert follow(run, losses).alarms() == alarms


@pytest.mark.parametrize(("momentum", "alarms"), [(0.0, []), (0.9, ["OPT007"])])
def test_the_first_steps_of_rmsprop_are_long_by_design(momentum: float, alarms: list[str]) -> None:
    run, streams = training(*OPT007), ("gradient", "weight", "update", "optimizer")
    for step, loss in enumerate((0.5, 1.3, 0.9, 1.3, 0.4, 1.2, 0.4, 0.3, 0.9, 0.3, 0.9, 0.2)):
        ratio = 0.5 / (step + 1) ** 0.5 if step < 5 else 0.01
        run.run(1, scalars={"loss": loss, "lr": 1e-3}, streams=streams, update_ratio=ratio, update_norm=10 * ratio,
                optimizer_eps_ratio=1e5, optimizer_momentum=momentum)  # fmt: skip
    assert run.alarms() == alarms


@pytest.mark.parametrize(
    ("first_update", "level", "before", "alarms"),
    [(0.4, 1.5, 2.0, ["OPT007"]), (0.01, 1.5, 2.0, []), (0.4, 1.3, 2.0, []), (0.4, 1.5, 0.3, [])],
)
def test_one_large_step_and_one_answer_for_all_since(
    first_update: float, level: float, before: float, alarms: list[str]
) -> None:
    run = training(*OPT007)
    known = {
        "loss_kind": 1.0, "loss_classes": 10.0, "loss_reduction": 1.0, "loss_rows": 64.0,
        "label_entropy_pooled": 1.5, "lr": 0.1,
    }  # fmt: skip
    for step, loss in enumerate([3.0, *[before] * 9, *noisy([level] * 80, 0.01)]):
        ratio = 1e-3 if step else first_update
        run.run(1, scalars=known | {"loss": loss}, update_ratio=ratio, update_norm=10 * ratio)
    assert run.alarms() == alarms


@pytest.mark.parametrize(("spread", "alarms"), [(0.01, ["OPT007"]), (1.0, [])])
def test_predictions_that_differ_are_no_single_answer(spread: float, alarms: list[str]) -> None:
    run = training(*OPT007)
    known = {
        "loss_kind": float(LossKind.MEAN_SQUARE), "loss_reduction": 1.0, "loss_rows": 64.0, "target_std": 1.0,
        "prediction_std": spread, "lr": 0.1,
    }  # fmt: skip
    for step, loss in enumerate([3.0, *[2.0] * 9, *noisy([1.0] * 80, 0.01)]):
        ratio = 1e-3 if step else 0.4
        run.run(1, scalars=known | {"loss": loss}, update_ratio=ratio, update_norm=10 * ratio)
    assert run.alarms() == alarms


@pytest.mark.parametrize(("losses", "layers"), [([4.0] * 80, ("head.bias",)), (falling(80), None)])
def test_one_group_far_ahead_while_nothing_is_learnt(losses: Any, layers: tuple[str, ...] | None) -> None:
    run, rates = training(*OPT007), {"head.bias": 2.0}
    settings = {layer.path: rates.get(layer.path, 4e-3) for layer in run.layers.parameters}
    streams = ("gradient", "weight", "update", "optimizer")
    for loss in losses:
        run.run(1, scalars={"loss": loss, "lr": 2.0}, streams=streams, optimizer_rate=settings, update_ratio=1e-3)
    assert [finding.layers for finding in run.findings()] == ([layers] if layers else [])


@pytest.mark.parametrize(("second", "alarms"), [(0.9, []), (1.4, ["OPT007"])])
def test_a_leap_after_one_large_update_that_comes_down_at_once_is_borne(second: float, alarms: list[str]) -> None:
    run = follow(training(*OPT007), [0.5], update_ratio=0.3, update_norm=3.0)
    follow(run, [1.2, second, 0.6, 0.4, *noisy([0.1] * 30)], update_ratio=0.15, update_norm=1.5)
    assert run.alarms() == alarms
