"""MOD001 on frames made by hand: modules in evaluation mode."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.modes.evaluation_mode import EvaluationMode

NET = ("conv:Conv2d", "norm:BatchNorm2d", "relu:ReLU", "drop:Dropout", "head:Linear")
PARTS = ("conv", "norm", "relu", "drop", "head")


def modes(**asleep: float) -> dict[str, float]:
    return {part: asleep.get(part, 1.0) for part in PARTS}


def test_a_normalisation_that_passes_its_input_on() -> None:
    training = stack(EvaluationMode, *NET)
    training.run(2, activation_training=modes(norm=0.0), activation_std={"conv": 3.0, "norm": 3.0})
    (finding,) = training.findings()
    assert (finding.code, finding.layers, finding.detected_step) == ("MOD001", ("norm",), 1)


def test_averages_that_happen_to_keep_the_deviation_were_learnt_all_the_same() -> None:
    alike = {"conv": 3.0, "norm": 3.0}
    moved = stack(EvaluationMode, *NET)
    moved.run(9, activation_training=modes(norm=0.0), activation_std=alike, activation_mean={"conv": 2.0, "norm": 0.0})
    assert moved.codes() == []
    trained = stack(EvaluationMode, *NET).run(5, activation_training=1.0, activation_std=alike)
    trained.run(9, activation_training=modes(norm=0.0), activation_std=alike)
    assert trained.codes() == []


def test_frozen_averages_that_were_learnt_are_a_choice() -> None:
    training = stack(EvaluationMode, *NET)
    training.run(9, activation_training=modes(norm=0.0), activation_std={"conv": 3.0, "norm": 1.0})
    assert training.codes() == []


def test_a_model_that_was_never_switched_back() -> None:
    training = stack(EvaluationMode, *NET).run(5, activation_training=1.0, activation_std={"conv": 3.0, "norm": 1.0})
    training.run(2, activation_training=0.0, activation_std={"conv": 3.0, "norm": 1.0}, dropout_rate={"drop": 0.3})
    (finding,) = training.findings()
    assert (finding.layers, finding.first_step) == (("norm", "drop"), 5)
    training.run(1, activation_training=1.0, activation_std=1.0)
    assert not training.findings()[0].ongoing


def test_normalisations_alone_frozen_half_way_are_a_choice() -> None:
    training = stack(EvaluationMode, *NET).run(5, activation_training=1.0, activation_std={"conv": 3.0, "norm": 1.0})
    training.run(9, activation_training=modes(norm=0.0), activation_std={"conv": 3.0, "norm": 1.0})
    assert training.codes() == []


def test_a_frozen_model_may_be_in_any_mode() -> None:
    training = stack(EvaluationMode, *NET, frozen=("conv", "norm", "head"))
    training.run(9, activation_training=0.0, activation_std=1.0, dropout_rate={"drop": 0.3})
    assert training.codes() == []


def test_a_dropout_that_does_nothing() -> None:
    training = stack(EvaluationMode, "0:Linear", "1:Dropout", "2:Linear")
    training.run(3, activation_training=0.0, activation_std=1.0, dropout_rate={"1": 0.3})
    assert training.findings()[0].layers == ("1",)


def test_a_dropout_that_sleeps_alone() -> None:
    parts = ("0:Linear", "1:Dropout", "2:Linear")
    training = stack(EvaluationMode, *parts)
    training.run(2, activation_training={"0": 1.0, "1": 0.0, "2": 1.0}, dropout_rate={"1": 0.3})
    assert training.findings()[0].layers == ("1",)
    resting = stack(EvaluationMode, *parts)  # a part of the model rests as a whole
    resting.run(9, activation_training={"0": 0.0, "1": 0.0, "2": 1.0}, dropout_rate={"1": 0.3})
    assert resting.codes() == []


def test_a_rate_of_zero_is_off_anyway() -> None:
    training = stack(EvaluationMode, "0:Linear", "1:Dropout", "2:Linear")
    assert training.run(3, activation_training=0.0, activation_std=1.0, dropout_rate={"1": 0.0}).codes() == []


def test_the_first_module_is_given_the_inputs() -> None:
    inputs = {"input_mean": 300.0, "input_std": 40.0}
    for mean, found in ((300.0, ["MOD001"]), (0.0, [])):
        training = stack(EvaluationMode, "norm:BatchNorm1d", "head:Linear")
        training.run(
            2, scalars=inputs, activation_training=0.0, activation_std={"norm": 40.0}, activation_mean={"norm": mean}
        )
        assert training.codes() == found
