"""OPT007 steps-drown-the-start."""

from __future__ import annotations

import pytest
from tests.detect.building import watched_by

from undertow.detect.rules.optimisation.steps_drown_the_start import StepsDrownTheStart
from undertow.schema import Finding, Severity


def trained(step: float = 0.15, grown: float = 7.0, left: float = 0.4, start: float = 10.0) -> list[Finding]:
    """100 steps of which each is this much of the weight at the start, while weights grow and the loss falls."""
    training = watched_by(StepsDrownTheStart)
    for count in range(100):
        norm = start * (1 + (grown - 1) * min(count / 30, 1.0))
        loss = 2.3 * max(left, 1 - count / 40) * (1 + 0.01 * (count % 3))
        update = step * start
        training.run(1, scalars={"loss": loss, "lr": 0.06}, weight_norm=norm, update_norm=update,
                     update_ratio=update / norm)  # fmt: skip
    return training.findings()


def test_a_loss_that_falls_while_steps_make_the_weights() -> None:
    (finding,) = trained()
    assert (finding.code, finding.severity, finding.layers) == ("OPT007", Severity.MODERATE, ())
    assert finding.first_step == 0
    assert finding.detected_step >= 59
    assert {one.quantity: one.value for one in finding.evidence}["update_ratio"] == pytest.approx(0.15)


@pytest.mark.parametrize(
    "healthy", [{"step": 0.07}, {"grown": 4.0}, {"left": 0.1}, {"left": 0.97}],
    ids=["steps a small model bears", "weights that grew a little", "nearly nothing left", "a loss that never fell"],
)  # fmt: skip
def test_what_is_borne_or_belongs_to_others(healthy: dict[str, float]) -> None:
    assert trained(**healthy) == []


def test_weights_that_begin_tiny_are_measured_by_the_usual_length() -> None:
    assert trained(start=0.01) == []
