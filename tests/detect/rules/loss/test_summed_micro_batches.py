"""LSS004: the losses of micro-batches are added where their mean was meant."""

from __future__ import annotations

import math

import pytest
from tests.detect.courses import CROSS_ENTROPY, training

from undertow.detect.rules.loss.summed_micro_batches import SummedMicroBatches
from undertow.schema import Severity


def summed(factor: float = 1.0, loss: float = 16 * math.log(10), passes: float = 16) -> dict[str, float]:
    return {**CROSS_ENTROPY, "loss_factor": factor, "loss": loss, "backward_count": passes}


def test_large_updates_make_it_an_alarm() -> None:
    run = training(SummedMicroBatches).run(5, scalars=summed(), update_ratio=0.5, update_norm=5.0)
    (finding,) = run.findings()
    assert (finding.code, finding.severity, finding.detected_step) == ("LSS004", Severity.SEVERE, 2)
    assert "16 micro-batches" in finding.summary


def test_without_harm_it_is_a_hint() -> None:
    run = training(SummedMicroBatches)
    for step in range(30):
        run.run(1, scalars=summed(loss=16 * math.log(10) * 0.97**step))
    assert [finding.severity for finding in run.findings()] == [Severity.MILD]


def test_a_first_batch_of_few_targets_says_little_of_a_guess() -> None:
    scalars = summed(loss=1.6 * 8 * math.log(10), passes=8)
    assert training(SummedMicroBatches).run(5, scalars=scalars).codes() == ["LSS004"]
    scalars = summed(loss=1.6 * 2 * math.log(10), passes=2)
    assert training(SummedMicroBatches).run(5, scalars=scalars).codes() == []


def test_divided_losses_are_silent() -> None:
    run = training(SummedMicroBatches).run(30, scalars=summed(1 / 16, math.log(10)), update_ratio=0.5)
    assert run.codes() == []


def late(worse: float, passes: float) -> list[tuple[str, Severity, int]]:
    run = training(SummedMicroBatches).run(20, scalars=summed(1 / 16, 0.5))
    run.run(20, scalars=summed(loss=worse * passes * 0.5, passes=passes))
    return [(finding.code, finding.severity, finding.first_step) for finding in run.findings()]


@pytest.mark.parametrize("passes", [16, 32])
def test_losses_that_are_no_longer_divided(passes: float) -> None:
    assert late(10.0, passes) == [("LSS004", Severity.SEVERE, 20)]
    assert late(1.0, passes) == [("LSS004", Severity.MILD, 20)]


def test_closures_of_one_batch_are_not_micro_batches() -> None:
    run = training(SummedMicroBatches).run(30, scalars=summed(loss=math.log(10), passes=20), update_ratio=0.5)
    assert run.codes() == []


def test_summed_reduction_is_silent() -> None:
    run = training(SummedMicroBatches).run(30, scalars=summed(loss=64 * 16 * math.log(10)), update_ratio=0.5)
    assert run.codes() == []


def test_one_pass_to_a_step_is_silent() -> None:
    run = training(SummedMicroBatches).run(30, scalars=summed(loss=math.log(10), passes=1), update_ratio=0.5)
    assert run.codes() == []


def test_a_loss_that_stays_at_chance_is_harm_also_where_it_began_above() -> None:
    run = training(SummedMicroBatches)
    for step in range(80):
        run.run(1, scalars=summed(loss=16 * math.log(10) * (1.0 + 0.2 * 0.5**step)))
    assert [finding.severity for finding in run.findings()] == [Severity.SEVERE]
