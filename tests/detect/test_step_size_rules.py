"""UPD001, UPD002."""

from __future__ import annotations

import pytest
from tests.detect.building import Training

from undertow.detect.engine import Engine
from undertow.detect.rule import Rule
from undertow.detect.rules.large_update import LargeUpdate
from undertow.detect.rules.small_update import SmallUpdate
from undertow.schema.severity import Severity


def watched_by(rule: Rule) -> Training:
    training = Training("first", "second", "third", "head")
    training.engine = Engine([rule])
    training.engine.set_layers(training.layers, training.graph)
    return training


def step(training: Training, loss: float, ratio: float | None, **more: object) -> Training:
    """`ratio` None: the update is not measured. Weights have the usual length for their shape or more."""
    if ratio is None:
        return training.run(1, scalars={"loss": loss}, streams=("gradient",), **more)
    return training.run(1, scalars={"loss": loss}, update_ratio=ratio, update_norm=10 * ratio, **more)


# -- UPD001 -------------------------------------------------------------------------------------------------------


def test_large_steps_with_a_loss_that_shoots_up() -> None:
    training = watched_by(LargeUpdate())
    for loss in (2.3, 5.0, 9.0, 20.0, 50.0):
        step(training, loss, 0.5)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("UPD001", Severity.SEVERE, ())
    assert (finding.first_step, finding.detected_step) == (0, 3)


@pytest.mark.parametrize("scale", [1e-5, 1e5])
def test_the_scale_of_the_loss_does_not_matter(scale: float) -> None:
    training = watched_by(LargeUpdate())
    for loss in (2.3, 5.0, 9.0, 20.0, 50.0):
        step(training, scale * loss, 0.5)
    assert training.codes() == ["UPD001"]


@pytest.mark.parametrize(("momentum", "found"), [(0.0, []), (0.9, ["UPD001"])])
def test_the_first_steps_of_rmsprop_are_long_by_design(momentum: float, found: list[str]) -> None:
    training, streams = watched_by(LargeUpdate()), ("gradient", "weight", "update", "optimizer")
    settings = {"optimizer_eps_ratio": 1e5, "optimizer_momentum": momentum, "streams": streams}
    for count, loss in enumerate((0.5, 1.3, 0.9, 1.3, 0.9, 1.2, 0.4, 0.3, 0.3, 0.2)):
        step(training, loss, 0.3 / (count + 1) ** 0.5 if count < 8 else 0.01, **settings)
    assert training.codes() == found


def test_steps_that_lead_nowhere() -> None:
    training = watched_by(LargeUpdate())
    for count in range(40):
        step(training, 2.3 if count == 0 else 2.5 + 0.1 * (count % 3), 0.1)
    assert training.findings()[0].detected_step == 19  # two lengths of the weight


def test_where_noise_hides_what_is_learnt_it_waits() -> None:
    training = watched_by(LargeUpdate())
    for count in range(60):
        step(training, 2.3 + 0.1 * (count % 3), 0.1)
    assert training.findings() == []
    for count in range(10):
        step(training, 2.3 + 0.1 * (count % 3), 0.1)
    assert training.codes() == ["UPD001"]


def test_losses_that_rise_without_a_burst_are_not_its_concern() -> None:
    training = watched_by(LargeUpdate())
    for loss in (0.028, 0.017, 0.014, 0.03, 0.05, 0.06, 0.06, 0.05):  # targets of a learner that values states
        step(training, loss, 0.06)
    assert training.findings() == []


def test_batches_that_differ_after_much_was_learnt_are_no_shock() -> None:
    training = watched_by(LargeUpdate())
    for count in range(60):
        step(training, 1.8 * 0.96**count * (2 if count > 30 and count % 9 > 5 else 1), 0.12)
    assert training.findings() == []


def test_large_steps_with_a_loss_that_falls_are_healthy() -> None:
    training = watched_by(LargeUpdate())
    for count in range(40):
        step(training, 2.3 * 0.8**count, 0.3)
    assert training.findings() == []


def test_a_loss_that_wavers_after_progress_is_healthy() -> None:
    training = watched_by(LargeUpdate())
    for count in range(40):
        step(training, 2.3 * 0.95**count, 0.02)
    for count in range(60):
        step(training, 0.3 + 0.1 * (count % 2), 0.08)
    assert training.findings() == []


def test_small_steps_with_a_loss_that_shoots_up_are_not_at_fault() -> None:
    training = watched_by(LargeUpdate())
    for loss in (2.3, 5.0, 9.0, 20.0, 50.0, 50.0, 50.0):
        step(training, loss, 0.01)
    assert training.findings() == []


def test_weights_that_start_at_zero_are_measured_by_the_usual_length() -> None:
    training = watched_by(LargeUpdate())
    for count in range(40):
        training.run(1, scalars={"loss": 2.3 + 0.1 * (count % 3)}, update_ratio=1.0, update_norm=0.01)
    assert training.findings() == []


def test_a_rate_that_leaps_between_two_measured_steps() -> None:
    training = watched_by(LargeUpdate())
    for count in range(60):
        step(training, 2.3 * 0.95**count, 0.01 if count % 6 == 0 else None)
    for loss in (4.0, 9.0, 8.0, 12.0, 15.0):
        step(training, loss, None)
    step(training, 20.0, 0.8)
    assert training.findings()[0].detected_step == 65


def test_large_steps_end_when_the_loss_falls_again() -> None:
    training = watched_by(LargeUpdate())
    for loss in (2.3, 5.0, 9.0, 20.0, 9.0):
        step(training, loss, 0.5)
    for count in range(60):
        step(training, 2.0 * 0.95**count, 0.01)
    assert not training.findings()[0].ongoing


def test_a_group_that_runs_ahead_is_named() -> None:
    training = watched_by(LargeUpdate())
    changes = {"optimizer_rate": {"second": 1.0, "first": 1e-3, "third": 1e-3, "head": 1e-3},
               "update_ratio": {"second": 0.5}, "update_norm": {"second": 5.0}}  # fmt: skip
    training.run(5, streams=("gradient", "weight", "update", "optimizer"), **changes)
    (finding,) = training.findings()
    assert (finding.severity, finding.layers, finding.detected_step) == (Severity.MODERATE, ("second.weight",), 2)
    # A head that is trained at a hundred times the rate, in steps that others make, too.
    usual = {**changes, "update_ratio": {"second": 0.06}, "update_norm": {"second": 0.06}}
    other = watched_by(LargeUpdate()).run(5, streams=("gradient", "weight", "update", "optimizer"), **usual)
    assert other.findings() == []


# -- UPD002 -------------------------------------------------------------------------------------------------------


def test_steps_too_small_to_learn_anything() -> None:
    training = watched_by(SmallUpdate()).run(10, update_ratio=5e-6)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("UPD002", Severity.SEVERE, ())
    assert (finding.first_step, finding.detected_step) == (0, 7)
    training.run(1, update_ratio=1e-3)
    assert not training.findings()[0].ongoing


def test_small_steps_need_gradients_that_agree() -> None:
    for cosine, codes in ((0.8, ["UPD002"]), (0.05, [])):
        training = watched_by(SmallUpdate()).run(60, update_ratio=1e-4, gradient_cosine=cosine)
        assert training.codes() == codes


def test_a_few_measured_steps_will_do_where_they_are_rare() -> None:
    training = watched_by(SmallUpdate()).run(3, update_ratio=5e-6)
    training.run(30, streams=())
    assert training.findings()[0].detected_step == 20


def test_a_warm_up_is_waited_for() -> None:
    training = watched_by(SmallUpdate())
    for count in range(60):
        training.run(1, update_ratio=1e-7 * (count + 1), scalars={"lr": 1e-6 * (count + 1)})
    assert training.findings() == []


def test_a_model_that_has_learnt_or_was_trained_before_may_rest() -> None:
    training = watched_by(SmallUpdate())
    for count in range(50):
        training.run(1, scalars={"loss": 2.3 * 0.9**count})
    training.run(50, update_ratio=1e-7, scalars={"loss": 0.01})
    assert training.findings() == []
    tuned = watched_by(SmallUpdate())
    tuned.run(50, update_ratio=1e-6, scalars={"loss": 0.1, "loss_kind": 1.0, "loss_classes": 10.0})
    assert tuned.findings() == []


def test_layers_that_are_slow_while_others_move_are_left_to_other_rules() -> None:
    slow = {"first": 1e-8, "second": 1e-7, "third": 1e-6, "head": 1e-3}
    assert watched_by(SmallUpdate()).run(60, update_ratio=slow).findings() == []


def test_weights_without_a_gradient_or_that_never_moved_are_left_to_other_rules() -> None:
    assert watched_by(SmallUpdate()).run(60, update_ratio=1e-7, gradient_norm=0.0).findings() == []
    assert watched_by(SmallUpdate()).run(60, update_ratio=0.0).findings() == []


def test_a_group_that_stays_behind_is_named() -> None:
    training = watched_by(SmallUpdate())
    bound = 8**-0.5
    changes = {"optimizer_rate": {"first": 0.1, "second": 0.1, "third": 0.1, "head": 1e-5},
               "update_ratio": {"head": 1e-7}, "weight_max_abs": 0.99 * bound, "weight_mean": 0.0,
               "weight_std": bound / 3**0.5, "weight_kurtosis": -1.2}  # fmt: skip
    training.run(5, streams=("gradient", "weight", "update", "optimizer"), **changes)
    (finding,) = training.findings()
    assert (finding.severity, finding.layers) == (Severity.MODERATE, ("head.weight",))
    trained = {**changes, "weight_kurtosis": 1.0}
    other = watched_by(SmallUpdate()).run(5, streams=("gradient", "weight", "update", "optimizer"), **trained)
    assert [finding.severity for finding in other.findings()] == [Severity.MILD]
    resting = {**changes, "optimizer_rate": {"first": 0.1, "second": 0.1, "third": 0.1, "head": 0.0}}
    other = watched_by(SmallUpdate()).run(10, streams=("gradient", "weight", "update", "optimizer"), **resting)
    assert other.findings() == []


def test_most_of_a_model_can_stay_behind() -> None:
    bound = 8**-0.5
    changes = {"optimizer_rate": {"first": 1e-5, "second": 1e-5, "third": 1e-5, "head": 0.1},
               "weight_max_abs": 0.99 * bound, "weight_mean": 0.0, "weight_std": bound / 3**0.5,
               "weight_kurtosis": -1.2}  # fmt: skip
    streams = ("gradient", "weight", "update", "optimizer")
    for slow, named in ((1e-6, ("first.weight", "second.weight", "third.weight")), (1e-3, None)):
        ratios = {"first": slow, "second": slow, "third": slow, "head": 1e-2}
        training = watched_by(SmallUpdate()).run(5, streams=streams, update_ratio=ratios, **changes)
        assert [finding.layers for finding in training.findings()] == ([named] if named else [])


def taken_back(steps: int, drift: float = 0.021, cosine: float = 0.9, left: float = 1.01) -> list[str]:
    """Updates of a fiftieth of the weight, whose norm is `left` after each step and 1 before the next."""
    training = watched_by(SmallUpdate()).run(
        steps, update_norm=0.02, update_ratio=0.02, weight_norm=left, weight_drift=drift, update_cosine=cosine
    )
    return [f"{finding.code} {finding.detected_step}" for finding in training.findings()]


def test_updates_that_are_taken_back_before_the_next_step() -> None:
    assert taken_back(12) == ["UPD002 8"]


def test_updates_that_add_up_or_undo_one_another_are_not_taken_back() -> None:
    assert taken_back(60, drift=0.2) == []
    assert taken_back(60, cosine=-0.9) == []
    assert taken_back(60, left=1.0) == []  # nothing writes to the weights between the steps


def test_updates_that_are_taken_back_for_the_most_part() -> None:
    assert taken_back(60, drift=0.05) == ["UPD002 33"]  # half a random walk of thirty such steps: 0.055
    assert taken_back(30, drift=0.05) == []


def test_the_group_whose_rate_is_far_above_the_others_is_blamed_for_large_steps() -> None:
    training = watched_by(LargeUpdate())
    rates = {"head": 1.0, "first": 1e-3, "second": 1e-3, "third": 1e-3}
    for loss in (2.3, 5.0, 9.0, 20.0, 50.0):
        more = {"streams": ("gradient", "weight", "update", "optimizer"), "optimizer_rate": rates}
        step(training, loss, 0.5, **more)
    assert [finding.layers for finding in training.findings()] == [("head.weight",)]
