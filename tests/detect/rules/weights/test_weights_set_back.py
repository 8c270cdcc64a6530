"""WGT006: the whole model is set back to an earlier state."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.engine.registry import conditions_of

CONDITIONS = conditions_of("WGT006")


LAYERS = ("0:Linear", "1:Linear", "2:Linear", "head:Linear")


def reload(scalars: dict[str, float], times: int = 2) -> list[str]:
    """Updates of a hundredth of the weight, and an old state every twenty steps."""
    training = stack(CONDITIONS, *LAYERS)
    for step in range(20 * times + 5):
        drift = 0.01 * (step % 20 + 1)
        again = scalars if step and step % 20 == 0 else {}
        training.run(1, scalars=again, weight_drift=drift, update_norm=0.01, update_ratio=0.01)
    return training.alarms()


def test_a_whole_model_that_is_set_back_in_every_epoch() -> None:
    assert reload({}) == ["WGT006"]
    assert reload({}, times=1) == []


def test_set_back_together_with_its_optimizer_is_another_fold() -> None:
    assert reload({"optimizer_made_anew": 1.0}) == []


def test_set_back_under_optimizers_in_turn() -> None:
    """Frames in which the other one steps say nothing of who holds these layers."""
    training = stack(CONDITIONS, *LAYERS)
    for step in range(45):
        drift = 0.01 * (step % 20 + 1)
        holder = 0.0 if step % 2 == 0 else float("nan")
        training.run(1, gradient_optimizer=holder, weight_drift=drift, update_norm=0.01, update_ratio=0.01)
    assert training.alarms() == ["WGT006"]


def test_a_new_head_on_a_model_that_is_gone_is_another_phase() -> None:
    """Only the head is there before and after, under the same name; what was set back is not all of the model."""
    training = stack(CONDITIONS, *LAYERS)
    for step in range(40):
        training.run(1, scalars={"loss": 1.0}, weight_drift=0.01 * (step + 1), update_norm=0.01, update_ratio=0.01)
    training.run(5, scalars={"loss": 9.0}, only=("head",), weight_drift=0.01, update_norm=0.01, update_ratio=0.01)
    assert training.alarms() == []
