"""GRD010: clipping takes nearly everything away."""

from __future__ import annotations

import math

from tests.detect.building import Training, watched_by

from undertow.detect.rules.gradients.over_clipping import OverClipping
from undertow.schema import Severity

SLOW = {"update_ratio": 1e-5, "update_norm": 1e-5, "stepped_gradient_norm": 1e-4}


def clipped(training: Training, steps: int, left: float = 1e-3, scale: float = math.nan, **more: float) -> Training:
    scalars = {"clip_coefficient": left, "lr": 0.1, "gradient_norm_total": 0.1, "loss": more.pop("loss", 1.0)}
    scalars["loss_scale"] = scale
    return training.run(steps, scalars=scalars, **{**SLOW, **more})


def test_clipping_that_leaves_nothing() -> None:
    training = clipped(watched_by(OverClipping), 10)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD010", Severity.SEVERE, ())
    assert finding.detected_step == 7
    clipped(training, 3, left=0.8)
    assert not training.findings()[0].ongoing


def test_a_scale_that_is_clipped_away_is_to_be_removed_first() -> None:
    (finding,) = clipped(watched_by(OverClipping), 10, scale=65536.0).findings()
    assert [remedy.id for remedy in OverClipping.remedies_for(finding)] == ["unscale-before-clipping"]
    (finding,) = clipped(watched_by(OverClipping), 10).findings()
    assert [remedy.id for remedy in OverClipping.remedies_for(finding)] == ["raise-the-clip-threshold"]


def test_clipping_that_begins_late_is_seen_too() -> None:
    training = watched_by(OverClipping)
    for step in range(50):
        clipped(training, 1, left=1.0, loss=2.0 * 0.95**step)
    clipped(training, 10, loss=0.15)
    assert training.findings()[0].first_step == 50


def test_clipping_that_comes_and_goes_while_the_loss_falls_is_healthy() -> None:
    training = watched_by(OverClipping)
    for step in range(20):
        clipped(training, 4, loss=2.0 * 0.8**step)
        clipped(training, 2, left=0.5, loss=2.0 * 0.8**step)
    assert clipped(training, 30, loss=2.0 * 0.8**20).findings() == []


def test_clipping_to_a_tenth_under_adam_or_with_steps_that_are_long_enough_is_healthy() -> None:
    training = clipped(watched_by(OverClipping), 30, left=0.1)
    clipped(training, 30, stepped_gradient_norm=1e-8)  # Adam: the length of a step has nothing to do with the gradient
    clipped(training, 30, update_ratio=1e-3)
    assert training.findings() == []


def test_under_adam_the_scale_of_the_gradient_cancels_out() -> None:
    """However short the steps are, and however near to those of SGD in a small model."""
    training = watched_by(OverClipping).run(1, scalars={"optimizer_eps": 1e-5})
    assert clipped(training, 40).findings() == []
