"""OPT007: the schedule returns a rate where a factor belongs."""

from __future__ import annotations

from collections.abc import Iterable

from tests.detect.courses import OPT007, noisy, training


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
