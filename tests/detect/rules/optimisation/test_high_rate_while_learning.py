"""OPT007 too-high-while-learning."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.detect.building import watched_by

from undertow.detect.rules.optimisation.high_rate_while_learning import HighRateWhileLearning
from undertow.schema import Finding, LossKind, Severity

CROSS_ENTROPY = {"loss_kind": LossKind.CROSS_ENTROPY, "loss_factor": 1.0}


def trained(
    step: float = 0.15,
    grown: float = 7.0,
    left: float = 0.4,
    start: float = 10.0,
    grows_for: int = 30,
    targets: tuple[float, float] | None = None,
    loss: dict[str, float] = CROSS_ENTROPY,
) -> list[Finding]:
    """100 steps, each this much of the initial weight, while weights grow, the loss falls and targets may move."""
    training = watched_by(HighRateWhileLearning)
    for count in range(100):
        norm = start * (1 + (grown - 1) * min(count / grows_for, 1.0))
        scalars = {"loss": 2.3 * max(left, 1 - count / 40) * (1 + 0.01 * (count % 3)), "lr": 0.06, **loss}
        if targets is not None and count % 8 == 0:
            scalars |= {"target_mean": 0.0, "target_std": targets[0] + (targets[1] - targets[0]) * count / 100}
        training.run(1, scalars=scalars, weight_norm=norm, update_norm=step * start, update_ratio=step * start / norm)
    return training.findings()


def test_a_loss_that_falls_while_updates_that_cancel_make_the_weights() -> None:
    (finding,) = trained()
    assert (finding.code, finding.severity, finding.layers) == ("OPT007", Severity.MODERATE, ())
    assert finding.first_step == 0
    assert finding.detected_step >= 59
    assert {one.quantity: one.value for one in finding.evidence}["update_ratio"] == pytest.approx(0.15)


@pytest.mark.parametrize(
    "healthy", [{"step": 0.07}, {"grown": 4.0}, {"left": 0.1}, {"left": 0.97}],
    ids=["shorter steps", "weights that grew a little", "nearly nothing left", "a loss that never fell"],
)  # fmt: skip
def test_what_is_harmless_or_belongs_to_others(healthy: dict[str, Any]) -> None:
    assert trained(**healthy) == []


def test_long_updates_that_agree_have_a_long_way_to_go() -> None:
    assert trained(grown=15.0, grows_for=99, step=0.15) == []


@pytest.mark.parametrize(("targets", "found"), [((10.0, 10.0), 1), ((10.0, 40.0), 0)], ids=["at rest", "growing"])
def test_where_targets_grow_what_is_left_of_the_loss_says_nothing(targets: tuple[float, float], found: int) -> None:
    assert len(trained(targets=targets)) == found


@pytest.mark.parametrize(
    "loss", [{}, {"loss_kind": LossKind.UNKNOWN}, {"loss_kind": LossKind.CROSS_ENTROPY, "loss_factor": math.nan}],
    ids=["never measured", "unknown", "one of several terms"],
)  # fmt: skip
def test_a_loss_of_unknown_kind_may_have_nothing_left_to_gain(loss: dict[str, float]) -> None:
    assert trained(loss=loss) == []


def test_weights_that_begin_tiny_are_measured_by_the_usual_length() -> None:
    assert trained(start=0.01) == []
