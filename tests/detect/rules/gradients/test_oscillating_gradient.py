"""GRD005: gradients point back and forth."""

from __future__ import annotations

from tests.detect.building import watched_by

from undertow.detect.rules.gradients.oscillating_gradient import OscillatingGradient
from undertow.schema import Severity


def test_gradients_that_point_to_and_fro_without_progress() -> None:
    training = watched_by(OscillatingGradient)
    training.run(20, gradient_cosine=-0.8)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD005", Severity.MODERATE, ())
    assert finding.detected_step == 16
    training.run(12, gradient_cosine=0.4)
    assert not training.findings()[0].ongoing


def test_oscillation_at_the_edge_of_stability_is_healthy() -> None:
    training = watched_by(OscillatingGradient)
    for step in range(60):
        training.run(1, gradient_cosine=-0.8, scalars={"loss": (2.0 + 0.2 * (-1) ** step) * 0.97**step})
    assert training.findings() == []


def test_gradients_measured_at_every_second_step_tell_nothing() -> None:
    training = watched_by(OscillatingGradient)
    for _ in range(40):
        training.run(1, gradient_cosine=-0.8)
        training.step += 1
    assert training.findings() == []
