"""OPT007: the learning rate jumps, and the loss follows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.detect.courses import OPT007, falling, follow, noisy, training


def test_another_training_in_the_same_run_begins_anew() -> None:
    for anew, expected in ((0.0, ["OPT007"]), (1.0, [])):
        run = follow(training(*OPT007), falling(60), [0.002] * 60)
        run.run(1, scalars={"loss": 2.3, "lr": 0.1, "another_training": anew})
        follow(run, noisy(np.geomspace(2.3, 1.5, 60)), [0.1] * 60)
        assert run.alarms() == expected


def test_a_leap_that_the_loss_follows() -> None:
    run = follow(training(*OPT007), falling(60), [0.05] * 60)
    follow(run, [0.2, 9.0, 50.0], [5.0] * 3)
    (finding,) = run.findings()
    assert (finding.first_step, finding.detected_step) == (60, 61)


def test_a_leap_that_does_no_harm_and_restarts_are_silent() -> None:
    run = follow(training(*OPT007), falling(60), [0.05] * 60)
    assert follow(run, noisy(np.geomspace(0.23, 0.1, 60)), [5.0] * 60).codes() == []
    rates = [0.1 * (1 + math.cos(math.pi * (step % 40) / 40)) for step in range(200)]
    assert follow(training(*OPT007), noisy(np.geomspace(2.3, 0.1, 200), 0.3), rates).codes() == []


def test_rates_of_optimizers_in_turn_are_not_one_rate() -> None:
    run = training(*OPT007)
    for loss in falling(100):
        run.run(1, scalars={"loss": loss, "lr": 1e-3, "lr_0": 1e-3})
        run.run(1, scalars={"loss": 9 - loss, "lr": 0.05, "lr_1": 0.05})
    assert run.codes() == []


@pytest.mark.parametrize(("holders", "alarms"), [(-1.0, []), (0.0, ["OPT007"])])
def test_another_optimizer_in_the_place_of_the_first_has_a_rate_of_its_own(holders: float, alarms: list[str]) -> None:
    """As for a new head on a model that is frozen from then on."""
    run = follow(training(*OPT007), falling(60), [0.004] * 60)
    others = {"first": holders, "second": holders}
    for loss in (3.0, 3.5, 4.0, 4.5, 5.0):
        run.run(1, scalars={"loss": loss, "lr": 0.05}, gradient_optimizer=others)
    assert run.alarms() == alarms
