"""GRD006: a gradient far above all before it."""

from __future__ import annotations

from tests.detect.building import Training, watched_by

from undertow.detect.rules.gradients.gradient_spike import GradientSpike
from undertow.schema import Severity

NAMES = ("a", "b", "c", "d", "e", "f")


def calm(training: Training, steps: int) -> Training:
    for step in range(steps):
        norm = 0.1 * 1.1 ** (step % 5)
        training.run(1, gradient_norm=norm, update_ratio=1e-3, scalars={"gradient_norm_total": norm})
    return training


def test_a_spike_that_throws_the_weights_about_is_an_alarm_and_ends() -> None:
    training = calm(watched_by(GradientSpike, names=NAMES), 30)
    training.run(1, gradient_norm=5.0, update_ratio=0.05, update_norm=0.05, scalars={"gradient_norm_total": 5.0})
    calm(training, 5)
    (finding,) = training.findings()
    assert (finding.code, finding.severity) == ("GRD006", Severity.SEVERE)
    assert (finding.first_step, finding.last_step, finding.ongoing) == (30, 30, False)
    assert finding.layers == ()


def test_a_spike_that_clipping_took_away_is_a_remark() -> None:
    training = calm(watched_by(GradientSpike, names=NAMES), 30)
    training.run(1, gradient_norm=5.0, update_ratio=1e-3, scalars={"gradient_norm_total": 5.0})
    assert [finding.severity for finding in training.findings()] == [Severity.MILD]


def test_a_spike_of_one_layer_of_many_does_not_win_the_vote() -> None:
    training = calm(watched_by(GradientSpike, names=NAMES), 30)
    training.run(1, gradient_norm={"a": 5.0}, update_ratio=0.05, scalars={"gradient_norm_total": 5.0})
    assert training.findings() == []


def test_gradients_of_long_ago_that_come_back_are_healthy() -> None:
    training = watched_by(GradientSpike, names=NAMES)
    training.run(20, gradient_norm=5.0, scalars={"gradient_norm_total": 5.0})
    calm(training, 60)
    training.run(1, gradient_norm=5.0, update_ratio=0.05, scalars={"gradient_norm_total": 5.0})
    assert training.findings() == []


def test_a_spike_after_updates_that_leapt_under_a_usual_gradient_follows_from_them() -> None:
    training = calm(watched_by(GradientSpike, names=NAMES), 30)
    training.run(1, gradient_norm=0.1, update_ratio=0.3, update_norm=0.3, scalars={"gradient_norm_total": 0.1})
    training.run(1, gradient_norm=50.0, update_ratio=5.0, update_norm=5.0, scalars={"gradient_norm_total": 50.0})
    assert [finding.severity for finding in training.findings()] == [Severity.MILD]
