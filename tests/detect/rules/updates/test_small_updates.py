"""UPD002 small-updates."""

from __future__ import annotations

from tests.detect.building import watched_by

from undertow.detect.rules.updates.small_updates import SmallUpdates
from undertow.schema import Severity


def test_steps_too_small_to_learn_anything() -> None:
    training = watched_by(SmallUpdates).run(10, update_ratio=5e-6)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("UPD002", Severity.SEVERE, ())
    assert (finding.first_step, finding.detected_step) == (0, 7)
    training.run(1, update_ratio=1e-3)
    assert not training.findings()[0].ongoing


def test_small_steps_need_gradients_that_agree() -> None:
    for cosine, codes in ((0.8, ["UPD002"]), (0.05, [])):
        training = watched_by(SmallUpdates).run(60, update_ratio=1e-4, gradient_cosine=cosine)
        assert training.codes() == codes


def test_a_few_measured_steps_will_do_where_they_are_rare() -> None:
    training = watched_by(SmallUpdates).run(3, update_ratio=5e-6)
    training.run(30, streams=())
    assert training.findings()[0].detected_step == 20


def test_a_warm_up_is_waited_for() -> None:
    training = watched_by(SmallUpdates)
    for count in range(60):
        training.run(1, update_ratio=1e-7 * (count + 1), scalars={"lr": 1e-6 * (count + 1)})
    assert training.findings() == []


def test_a_model_that_has_learnt_or_was_trained_before_may_rest() -> None:
    training = watched_by(SmallUpdates)
    for count in range(50):
        training.run(1, scalars={"loss": 2.3 * 0.9**count})
    training.run(50, update_ratio=1e-7, scalars={"loss": 0.01})
    assert training.findings() == []
    tuned = watched_by(SmallUpdates)
    tuned.run(50, update_ratio=1e-6, scalars={"loss": 0.1, "loss_kind": 1.0, "loss_classes": 10.0})
    assert tuned.findings() == []


def test_layers_that_are_slow_while_others_move_are_left_to_other_rules() -> None:
    slow = {"first": 1e-8, "second": 1e-7, "third": 1e-6, "head": 1e-3}
    assert watched_by(SmallUpdates).run(60, update_ratio=slow).findings() == []


def test_weights_without_a_gradient_or_that_never_moved_are_left_to_other_rules() -> None:
    assert watched_by(SmallUpdates).run(60, update_ratio=1e-7, gradient_norm=0.0).findings() == []
    assert watched_by(SmallUpdates).run(60, update_ratio=0.0).findings() == []
