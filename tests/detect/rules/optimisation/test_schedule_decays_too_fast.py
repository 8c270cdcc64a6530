"""OPT007: the schedule takes the learning rate away before anything is learnt."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.detect.courses import OPT007, falling, follow, noisy, training

from undertow.schema import Severity


def test_a_rate_that_shrinks_with_every_batch_stops_what_was_being_learnt() -> None:
    level = [1.0, 0.9, 0.8, 0.7, 0.6, 0.55, 0.5, 0.47, 0.45, 0.43, *[0.42] * 110]
    for share, codes in ((0.9, ["OPT007"]), (0.99, [])):
        run = training(*OPT007)
        for step, loss in enumerate(noisy(level)):
            run.run(1, scalars={"loss": loss, "lr": 0.06 * share**step}, update_ratio=0.01)
        assert run.alarms() == codes


def test_a_schedule_for_epochs_stepped_per_batch() -> None:
    rates = [0.05 * 0.1 ** (step // 3) for step in range(40)]
    run = follow(training(*OPT007), noisy([2.3] * 40, 0.01), rates)
    (finding,) = run.findings()
    assert (finding.code, finding.severity) == ("OPT007", Severity.SEVERE)
    assert finding.detected_step <= 12
    assert finding.variant == "schedule-decays-too-fast"


def test_a_rate_cut_again_and_again_while_the_loss_falls() -> None:
    losses = [*noisy(np.geomspace(1.2, 0.6, 24), 0.02), *noisy([0.6] * 76, 0.02)]
    rates = [5e-3 * 0.3 ** (step // 9) for step in range(100)]  # ReduceLROnPlateau with the wrong mode
    assert follow(training(*OPT007), losses, rates).alarms() == ["OPT007"]
    slower = [5e-3 * 0.3 ** (step // 40) for step in range(100)]
    assert follow(training(*OPT007), losses, slower).codes() == []


@pytest.mark.parametrize("steps", [20, 100, 400])
def test_the_end_of_a_cosine_is_silent(steps: int) -> None:
    rates = [0.05 * (1 + math.cos(math.pi * step / steps)) for step in range(steps)]
    assert follow(training(*OPT007), noisy([2.3] * steps, 0.01), rates).codes() == []


def test_a_rate_that_went_because_of_a_plateau_is_silent() -> None:
    losses = [*noisy(np.geomspace(2.3, 1.6, 40)), *noisy([1.6] * 200)]
    rates = [0.05 * 0.5 ** (max(0, step - 100) // 8) for step in range(240)]
    assert follow(training(*OPT007), losses, rates).codes() == []


def test_a_learnt_model_may_rest() -> None:
    rates = [0.05 * 0.1 ** (step // 20) for step in range(200)]
    assert follow(training(*OPT007), falling(200, to=0.01), rates).codes() == []


def test_a_rate_that_no_plan_would_reach() -> None:
    """Whatever the loss did: it is cut every third step, until nothing is left of it."""
    losses = [*noisy(np.geomspace(2.5, 1.75, 10)), *noisy([1.75] * 70, 0.05)]
    for factor, codes in ((0.1, ["OPT007"]), (0.8, [])):
        rates = [0.04 * factor ** (step // 3) for step in range(80)]
        assert follow(training(*OPT007), losses, rates).alarms() == codes
