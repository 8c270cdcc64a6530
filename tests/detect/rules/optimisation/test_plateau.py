"""OPT002: the loss stands still although gradients agree."""

from __future__ import annotations

from tests.detect.courses import falling, follow, noisy, training

from undertow.detect.rules.optimisation.plateau import Plateau
from undertow.schema import Severity


def test_a_hint_where_gradients_agree() -> None:
    losses = [*falling(40, to=0.7), *noisy([1.6] * 300)]
    run = follow(training(Plateau), losses, gradient_cosine=0.8)
    assert [finding.severity for finding in run.findings()] == [Severity.MILD]


def test_a_noise_floor_is_silent() -> None:
    losses = [*falling(40, to=0.7), *noisy([1.6] * 300)]
    assert follow(training(Plateau), losses, gradient_cosine=0.02).codes() == []
