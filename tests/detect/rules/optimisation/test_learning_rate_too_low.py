"""OPT007: the learning rate is too low."""

from __future__ import annotations

from tests.detect.courses import OPT007, falling, follow, noisy, training


def test_tiny_updates_and_a_loss_that_stands_still() -> None:
    run = follow(training(*OPT007), noisy([2.3] * 12, 0.01), update_ratio=1e-6, update_norm=1e-6)
    (finding,) = run.findings()
    assert finding.variant == "learning-rate-too-low"
    assert finding.evidence[0].quantity == "update_ratio"


def test_a_warm_up_and_a_learning_model_are_not_too_slow() -> None:
    rates = [1e-5 * (step + 1) for step in range(30)]
    still = noisy([2.3] * 30, 0.01)
    assert follow(training(*OPT007), still, rates, update_ratio=1e-6, update_norm=1e-6).codes() == []
    assert follow(training(*OPT007), falling(100), update_ratio=1e-6, update_norm=1e-6).codes() == []
