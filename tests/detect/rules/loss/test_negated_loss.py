"""LSS003: the loss is an error with a minus sign."""

from __future__ import annotations

from tests.detect.courses import CROSS_ENTROPY, training

from undertow.detect.rules.loss.negated_loss import NegatedLoss
from undertow.detect.rules.loss.unbounded_loss import UnboundedLoss
from undertow.schema import LossKind, Severity

SIGNS = (NegatedLoss, UnboundedLoss)


def test_a_negative_factor_of_an_error() -> None:
    run = training(*SIGNS).run(2, scalars={**CROSS_ENTROPY, "loss_factor": -1.0, "loss": -2.3})
    (finding,) = run.findings()
    assert (finding.code, finding.severity, finding.detected_step) == ("LSS003", Severity.SEVERE, 1)


def test_a_sign_that_turns_between_measurements() -> None:
    run = training(*SIGNS).run(16, scalars={**CROSS_ENTROPY, "loss": 2.2}).run(20, scalars={"loss": 2.2})
    run.run(3, scalars={"loss": -2.2})
    (finding,) = run.findings()
    assert (finding.first_step, finding.detected_step) == (36, 37)


def test_a_bonus_that_outweighs_a_small_error_is_silent() -> None:
    run = training(*SIGNS).run(16, scalars={**CROSS_ENTROPY, "loss": 2.2})
    for step in range(100):
        run.run(1, scalars={"loss": 2.2 * 0.9**step - 0.05})
    assert run.codes() == []


def test_rewards_may_be_negative() -> None:
    run = training(*SIGNS).run(20, scalars={"loss_kind": LossKind.UNKNOWN, "loss_factor": -1.0, "loss": -2.3})
    assert run.codes() == []


def test_a_small_negative_term_in_a_positive_loss_is_a_regulariser() -> None:
    run = training(*SIGNS).run(20, scalars={**CROSS_ENTROPY, "loss_factor": -0.01, "loss": 2.3})
    assert run.codes() == []


def test_adversaries_in_turn_are_silent() -> None:
    run = training(*SIGNS)
    for _ in range(20):
        run.run(1, scalars={**CROSS_ENTROPY, "loss": 0.7, "lr_0": 0.1})
        run.run(1, scalars={**CROSS_ENTROPY, "loss_factor": -1.0, "loss": -0.7, "lr_1": 0.1})
    assert run.codes() == []


def test_an_optimizer_that_maximizes_is_given_a_minus_on_purpose() -> None:
    uphill = {**CROSS_ENTROPY, "loss_factor": -1.0, "loss": -2.3, "optimizer_maximizes": 1.0}
    run = training(*SIGNS).run(2, scalars=uphill)
    assert run.run(20, scalars={**CROSS_ENTROPY, "loss_factor": -1.0, "loss": -2.0}).codes() == []


def test_a_loss_that_falls_through_zero_has_not_turned() -> None:
    run = training(*SIGNS).run(16, scalars={**CROSS_ENTROPY, "loss": 2.4})
    for loss in (2.4, 1.7, 1.2, 0.5, 0.2, -1.4, -3.0, -4.3, -5.8):
        run.run(1, scalars={"loss": loss})
    assert run.codes() == []
