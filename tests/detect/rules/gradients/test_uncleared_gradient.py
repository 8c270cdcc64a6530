"""GRD007: gradients are not cleared."""

from __future__ import annotations

from tests.detect.building import Training

from undertow.schema import Severity


def carry(training: Training, steps: int, carried: object = 1.0, **changes: object) -> Training:
    """Steps that add to the gradients of those before."""
    for _ in range(steps):
        norm = 0.1 * (1 + training.step)
        training.run(1, gradient_carried=carried, gradient_norm=norm, stepped_gradient_norm=norm, **changes)
    return training


def test_uncleared_gradients_blame_the_loop() -> None:
    training = carry(Training().run(1), 2)
    assert training.findings() == []
    carry(training, 4)
    (finding,) = training.findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD007", Severity.SEVERE, ())
    assert (finding.first_step, finding.detected_step, finding.last_step) == (1, 3, 6)


def test_uncleared_gradients_of_some_layers_name_them() -> None:
    training = carry(Training(), 5, {"third": 1.0})
    assert training.findings()[0].layers == ("third.weight", "third.bias")


def test_a_gradient_carried_now_and_then_is_silent() -> None:
    training = Training()
    for _ in range(30):
        carry(training, 2).run(1)
    assert training.findings() == []


def test_gradients_that_stay_the_same_are_left_behind_not_carried() -> None:
    """The model has got new parameters; the optimizer's own keep the gradient they had last."""
    training = Training().run(1).run(10, gradient_carried=1.0)
    assert training.codes() == ["UPD003"]
    assert training.findings()[0].first_step == 1


def test_carried_gradients_in_no_optimizer_are_left_to_the_other_rule() -> None:
    training = Training().run(10, gradient_carried={"third": 1.0}, gradient_optimizer={"third": -1.0})
    assert training.codes() == ["UPD003"]


def test_one_optimizer_of_two_that_is_not_cleared() -> None:
    training = Training()
    for _ in range(6):
        carry(training.run(1, only=("first", "second")), 1, only=("third", "head"))
    assert set(training.findings()[0].layers) == {"third.weight", "third.bias", "head.weight", "head.bias"}
