"""GRD008: the gradient is nearly all noise."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import watched_by

from undertow.detect.rules.gradients.noisy_gradient import NoisyGradient
from undertow.schema import Severity


def test_noise_that_dominates_from_the_start() -> None:
    training = watched_by(NoisyGradient)
    training.run(60, gradient_noise_scale=100.0, scalars={"backward_count": 4.0})
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD008", Severity.MILD, ())


@pytest.mark.parametrize(("scale", "batches"), [(8.0, 4.0), (100.0, 2.0), (100.0, 1.0)])
def test_little_noise_or_other_losses_instead_of_batches(scale: float, batches: float) -> None:
    training = watched_by(NoisyGradient)
    training.run(80, gradient_noise_scale=scale, scalars={"backward_count": batches})
    assert training.findings() == []


def test_noise_after_learning_is_healthy() -> None:
    training = watched_by(NoisyGradient)
    for step in range(100):
        training.run(1, gradient_noise_scale=math.inf, scalars={"backward_count": 4.0, "loss": 2.0 * 0.95**step})
    assert training.findings() == []
