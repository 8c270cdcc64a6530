"""OPT007: the schedule keeps the learning rate far below the one the optimizer was made with."""

from __future__ import annotations

from collections.abc import Iterable

from tests.detect.courses import OPT007, falling, follow, noisy, training


def scheduled(made_with: float, rates: Iterable[float], ratio: float = 1e-3) -> list[str]:
    run = training(*OPT007)
    for loss, rate in zip(noisy([2.3] * 60, 0.01), rates):
        run.run(1, scalars={"loss": loss, "lr": rate, "initial_lr": made_with}, update_ratio=ratio)
    return [f"{finding.code} {finding.detected_step}" for finding in run.findings()]


def test_a_schedule_that_returns_a_rate() -> None:
    warm = [9e-6 * min(1.0, (step + 1) / 20) for step in range(60)]
    assert scheduled(3e-3, warm) == ["OPT007 24"]


def test_a_warm_up_that_is_still_rising_and_a_rate_set_by_the_schedule_are_healthy() -> None:
    assert scheduled(3e-3, [1e-6 * (step + 1) for step in range(60)]) == []
    assert scheduled(1.0, [3e-4] * 60) == []
    assert scheduled(3e-3, [3e-5] * 60) == []  # resumed late in a schedule; the steps are long enough


def test_a_warm_up_that_never_ends() -> None:
    for made_with, codes in ((1e-3, ["OPT007"]), (1e-5, [])):
        run = training(*OPT007)
        for step, loss in enumerate(noisy([2.3] * 70, 0.01)):
            scalars = {"loss": loss, "lr": 1e-8 * (step + 1), "initial_lr": made_with}
            run.run(1, scalars=scalars, update_ratio=1e-5, update_norm=1e-5)
        assert run.codes() == codes


def test_a_warm_up_and_a_learning_model_are_not_too_slow() -> None:
    rates = [1e-5 * (step + 1) for step in range(30)]
    still = noisy([2.3] * 30, 0.01)
    assert follow(training(*OPT007), still, rates, update_ratio=1e-6, update_norm=1e-6).codes() == []
    assert follow(training(*OPT007), falling(100), update_ratio=1e-6, update_norm=1e-6).codes() == []
