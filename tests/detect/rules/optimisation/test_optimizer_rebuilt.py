"""OPT008: the optimizer is built anew at every step, or in every epoch."""

from __future__ import annotations

import math

import pytest
from tests.detect.courses import ADAM, OPT008, WITH_OPTIMIZER, falling, training, with_settings

from undertow.schema import Severity


def test_an_optimizer_for_every_step() -> None:
    run = with_settings(falling(10), optimizer_rebuilt=1.0, optimizer_step_count=1.0)
    (finding,) = run.findings()
    assert (finding.code, finding.severity, finding.detected_step) == ("OPT008", Severity.SEVERE, 2)
    assert finding.evidence[0].quantity == "optimizer_rebuilt"


@pytest.mark.parametrize(("length", "found"), [(1e-3, ["OPT008"]), (0.0, [])])
def test_a_counter_that_stands_while_weights_move(length: float, found: list[str]) -> None:
    """Parameters without a gradient are not stepped, and not counted."""
    run = with_settings(falling(10), optimizer_rebuilt=0.0, optimizer_step_count=1.0, update_norm=length)
    assert run.codes() == found


def test_a_new_optimizer_now_and_then_is_silent() -> None:
    run = with_settings(
        falling(100),
        optimizer_rebuilt=lambda step: float(step % 20 == 0),
        optimizer_step_count=lambda step: float(step % 20 + 1),
    )
    assert run.codes() == []


def test_plain_sgd_has_no_memory_to_lose() -> None:
    run = with_settings(falling(50), optimizer_rebuilt=1.0, optimizer_step_count=math.nan, optimizer_momentum=0.0)
    assert run.codes() == []


@pytest.mark.parametrize(("every", "alarms"), [(10, ["OPT008"]), (60, [])])
@pytest.mark.parametrize("slower", [1.0, 0.5])
def test_an_optimizer_of_every_epoch(every: int, alarms: list[str], slower: float) -> None:
    run, rate = training(*OPT008), 0.1
    for loss in falling(200):
        anew = run.step > 0 and run.step % every == 0
        rate *= slower if anew else 1.0
        scalars = {"loss": loss, "lr": rate} | ({"optimizer_made_anew": 1.0} if anew else {})
        run.run(1, scalars=scalars, streams=WITH_OPTIMIZER, **ADAM)
    assert run.alarms() == (alarms if slower == 1.0 else [])


@pytest.mark.parametrize(
    ("anew_at", "alarms"),
    [
        ((10, 20, 30, 40, 50, 60), ["OPT008"]),
        ((10, 20, 40, 50, 60, 70), ["OPT008"]),  # once nobody looked
        ((10, 20, 50, 60, 70, 80), ["OPT008"]),  # twice in a row
        ((10, 24, 34, 49, 59, 73), []),  # by no rule: whoever does it means it
    ],
)
def test_an_optimizer_at_even_intervals(anew_at: tuple[int, ...], alarms: list[str]) -> None:
    run = training(*OPT008)
    for loss in falling(100):
        scalars = {"loss": loss, "lr": 0.1} | ({"optimizer_made_anew": 1.0} if run.step in anew_at else {})
        run.run(1, scalars=scalars, streams=WITH_OPTIMIZER, **ADAM)
    assert run.alarms() == alarms
