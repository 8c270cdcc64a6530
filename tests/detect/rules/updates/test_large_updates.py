"""UPD001 large-updates."""

from __future__ import annotations

import math

import pytest
from tests.detect.building import Training, watched_by

from undertow.detect.rules.updates.large_updates import LargeUpdates
from undertow.schema import Severity


def step(training: Training, loss: float, ratio: float | None, **more: object) -> Training:
    """`ratio` None: the update is not measured. Weights have the usual length for their shape or more."""
    if ratio is None:
        return training.run(1, scalars={"loss": loss}, streams=("gradient",), **more)
    facts = {"update_ratio": ratio, "update_norm": 10 * ratio, "weight_norm": 10.0, **more}
    return training.run(1, scalars={"loss": loss}, **facts)


def test_large_steps_with_a_loss_that_shoots_up() -> None:
    training = watched_by(LargeUpdates)
    for loss in (2.3, 5.0, 9.0, 20.0, 50.0):
        step(training, loss, 0.5)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("UPD001", Severity.SEVERE, ())
    assert (finding.first_step, finding.detected_step) == (0, 3)


@pytest.mark.parametrize("scale", [1e-5, 1e5])
def test_the_scale_of_the_loss_does_not_matter(scale: float) -> None:
    training = watched_by(LargeUpdates)
    for loss in (2.3, 5.0, 9.0, 20.0, 50.0):
        step(training, scale * loss, 0.5)
    assert training.codes() == ["UPD001"]


@pytest.mark.parametrize(("momentum", "found"), [(0.0, []), (0.9, ["UPD001"])])
def test_the_first_steps_of_rmsprop_are_long_by_design(momentum: float, found: list[str]) -> None:
    training, streams = watched_by(LargeUpdates), ("gradient", "weight", "update", "optimizer")
    settings = {"optimizer_eps_ratio": 1e5, "optimizer_momentum": momentum, "streams": streams}
    for count, loss in enumerate((0.5, 1.3, 0.9, 1.3, 0.9, 1.2, 0.4, 0.3, 0.3, 0.2)):
        step(training, loss, 0.3 / (count + 1) ** 0.5 if count < 8 else 0.01, **settings)
    assert training.codes() == found


def test_steps_that_lead_nowhere() -> None:
    training = watched_by(LargeUpdates)
    for count in range(40):
        step(training, 2.3 if count == 0 else 2.5 + 0.1 * (count % 3), 0.1)
    assert training.findings()[0].detected_step == 19  # two lengths of the weight


def test_where_noise_hides_what_is_learnt_it_waits() -> None:
    training = watched_by(LargeUpdates)
    for count in range(60):
        step(training, 2.3 + 0.1 * (count % 3), 0.1)
    assert training.findings() == []
    for count in range(10):
        step(training, 2.3 + 0.1 * (count % 3), 0.1)
    assert training.codes() == ["UPD001"]


def test_losses_that_rise_without_a_burst_are_not_its_concern() -> None:
    training = watched_by(LargeUpdates)
    for loss in (0.028, 0.017, 0.014, 0.03, 0.05, 0.06, 0.06, 0.05):  # targets of a learner that values states
        step(training, loss, 0.06)
    assert training.findings() == []


def test_batches_that_differ_after_much_was_learnt_are_no_shock() -> None:
    training = watched_by(LargeUpdates)
    for count in range(60):
        step(training, 1.8 * 0.96**count * (2 if count > 30 and count % 9 > 5 else 1), 0.12)
    assert training.findings() == []


def test_large_steps_with_a_loss_that_falls_are_healthy() -> None:
    training = watched_by(LargeUpdates)
    for count in range(40):
        step(training, 2.3 * 0.8**count, 0.3)
    assert training.findings() == []


def test_a_loss_that_wavers_after_progress_is_healthy() -> None:
    training = watched_by(LargeUpdates)
    for count in range(40):
        step(training, 2.3 * 0.95**count, 0.02)
    for count in range(60):
        step(training, 0.3 + 0.1 * (count % 2), 0.08)
    assert training.findings() == []


def test_small_steps_with_a_loss_that_shoots_up_are_not_at_fault() -> None:
    training = watched_by(LargeUpdates)
    for loss in (2.3, 5.0, 9.0, 20.0, 50.0, 50.0, 50.0):
        step(training, loss, 0.01)
    assert training.findings() == []


def test_weights_that_start_at_zero_are_measured_by_the_usual_length() -> None:
    training = watched_by(LargeUpdates)
    for count in range(40):
        training.run(1, scalars={"loss": 2.3 + 0.1 * (count % 3)}, update_ratio=1.0, update_norm=0.01)
    assert training.findings() == []


def test_a_rate_that_leaps_between_two_measured_steps() -> None:
    training = watched_by(LargeUpdates)
    for count in range(60):
        step(training, 2.3 * 0.95**count, 0.01 if count % 6 == 0 else None)
    for loss in (4.0, 9.0, 8.0, 12.0, 15.0):
        step(training, loss, None)
    step(training, 20.0, 0.8)
    assert training.findings()[0].detected_step == 65


def test_large_steps_end_when_the_loss_falls_again() -> None:
    training = watched_by(LargeUpdates)
    for loss in (2.3, 5.0, 9.0, 20.0, 9.0):
        step(training, loss, 0.5)
    for count in range(60):
        step(training, 2.0 * 0.95**count, 0.01)
    assert not training.findings()[0].ongoing


def test_the_group_whose_rate_is_far_above_the_others_is_blamed_for_large_steps() -> None:
    training = watched_by(LargeUpdates)
    rates = {"head": 1.0, "first": 1e-3, "second": 1e-3, "third": 1e-3}
    for loss in (2.3, 5.0, 9.0, 20.0, 50.0):
        more = {"streams": ("gradient", "weight", "update", "optimizer"), "optimizer_rate": rates}
        step(training, loss, 0.5, **more)
    assert [finding.layers for finding in training.findings()] == [("head.weight",)]


@pytest.mark.parametrize(("losses", "found"), [((2.3, 0.5, 40.0, math.inf), ["UPD001"]), ((2.3, 0.5, math.inf), [])])
def test_a_loss_that_is_no_number_after_one_that_shot_up(losses: tuple[float, ...], found: list[str]) -> None:
    training = watched_by(LargeUpdates)
    for loss in losses:
        step(training, loss, 0.001 if loss == 2.3 else 0.5)
    assert training.codes() == found


def test_a_program_that_brings_weights_to_one_norm_moves_the_loss_itself() -> None:
    """Before each step they are 10 long; what the first one leaves is 4, or 10."""
    for left, found in ((4.0, []), (10.0, ["UPD001"])):
        training = watched_by(LargeUpdates)
        step(training, 0.5, 0.2, weight_norm=left)
        for loss in (1.2, 1.0, 0.9, 0.85, 0.8):
            step(training, loss, 0.2)
        assert training.codes() == found


@pytest.mark.parametrize(("flat", "found"), [(0.9, ["UPD001"]), (0.3, [])])
def test_units_that_are_thrown_to_their_limits_tell_what_a_reward_does_not(flat: float, found: list[str]) -> None:
    training = watched_by(LargeUpdates)
    for count in range(20):
        step(training, -0.5 if count % 2 else 0.5, 0.5, activation_saturated_fraction=flat if count > 1 else 0.0)
    assert training.codes() == found
