"""MOD001, MOD002, DAT001 and DAT003 on frames made by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.badly_scaled_inputs import BadlyScaledInputs
from undertow.detect.rules.badly_scaled_targets import BadlyScaledTargets
from undertow.detect.rules.unfit_normalisation import UnfitNormalisation
from undertow.detect.rules.wrong_mode import WrongMode
from undertow.schema.graph import GraphSource, LayerGraph

NET = ("conv:Conv2d", "norm:BatchNorm2d", "relu:ReLU", "drop:Dropout", "head:Linear")
PARTS = ("conv", "norm", "relu", "drop", "head")


def modes(**asleep: float) -> dict[str, float]:
    return {part: asleep.get(part, 1.0) for part in PARTS}


class TestWrongMode:
    def test_a_normalisation_that_passes_its_input_on(self) -> None:
        training = stack(WrongMode(), *NET)
        training.run(2, activation_training=modes(norm=0.0), activation_std={"conv": 3.0, "norm": 3.0})
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.detected_step) == ("MOD001", ("norm",), 1)

    def test_averages_that_happen_to_keep_the_deviation_were_learnt_all_the_same(self) -> None:
        alike = {"conv": 3.0, "norm": 3.0}
        moved = stack(WrongMode(), *NET)
        moved.run(
            9, activation_training=modes(norm=0.0), activation_std=alike, activation_mean={"conv": 2.0, "norm": 0.0}
        )
        assert moved.codes() == []
        trained = stack(WrongMode(), *NET).run(5, activation_training=1.0, activation_std=alike)
        trained.run(9, activation_training=modes(norm=0.0), activation_std=alike)
        assert trained.codes() == []

    def test_frozen_averages_that_were_learnt_are_a_choice(self) -> None:
        training = stack(WrongMode(), *NET)
        training.run(9, activation_training=modes(norm=0.0), activation_std={"conv": 3.0, "norm": 1.0})
        assert training.codes() == []

    def test_a_model_that_was_never_switched_back(self) -> None:
        training = stack(WrongMode(), *NET).run(5, activation_training=1.0, activation_std={"conv": 3.0, "norm": 1.0})
        training.run(2, activation_training=0.0, activation_std={"conv": 3.0, "norm": 1.0}, dropout_rate={"drop": 0.3})
        (finding,) = training.findings()
        assert (finding.layers, finding.first_step) == (("norm", "drop"), 5)
        training.run(1, activation_training=1.0, activation_std=1.0)
        assert not training.findings()[0].ongoing

    def test_normalisations_alone_frozen_half_way_are_a_choice(self) -> None:
        training = stack(WrongMode(), *NET).run(5, activation_training=1.0, activation_std={"conv": 3.0, "norm": 1.0})
        training.run(9, activation_training=modes(norm=0.0), activation_std={"conv": 3.0, "norm": 1.0})
        assert training.codes() == []

    def test_a_frozen_model_may_be_in_any_mode(self) -> None:
        training = stack(WrongMode(), *NET, frozen=("conv", "norm", "head"))
        training.run(9, activation_training=0.0, activation_std=1.0, dropout_rate={"drop": 0.3})
        assert training.codes() == []

    def test_a_dropout_that_does_nothing(self) -> None:
        training = stack(WrongMode(), "0:Linear", "1:Dropout", "2:Linear")
        training.run(3, activation_training=0.0, activation_std=1.0, dropout_rate={"1": 0.3})
        assert training.findings()[0].layers == ("1",)

    def test_a_dropout_that_is_given_the_share_to_keep(self) -> None:
        usual: dict[str, Any] = {"activation_training": 1.0, "dropout_rate": {"drop": 0.8}}
        training = stack(WrongMode(), *NET).run(3, **usual)
        assert training.codes() == []
        training.run(1, **usual | {"dropout_rate": {"drop": 0.97}})
        assert training.findings()[0].layers == ("drop",)
        assert not training.run(1, **usual).findings()[0].ongoing

    def test_the_rate_of_a_dropout_in_evaluation_mode_does_nothing(self) -> None:
        training = stack(WrongMode(), *NET)
        training.run(1, activation_training=modes(drop=0.0), dropout_rate={"drop": 0.97})  # its mode: at the second
        assert training.codes() == []

    def test_a_dropout_that_sleeps_alone(self) -> None:
        parts = ("0:Linear", "1:Dropout", "2:Linear")
        training = stack(WrongMode(), *parts)
        training.run(2, activation_training={"0": 1.0, "1": 0.0, "2": 1.0}, dropout_rate={"1": 0.3})
        assert training.findings()[0].layers == ("1",)
        resting = stack(WrongMode(), *parts)  # a part of the model rests as a whole
        resting.run(9, activation_training={"0": 0.0, "1": 0.0, "2": 1.0}, dropout_rate={"1": 0.3})
        assert resting.codes() == []

    def test_a_rate_of_zero_is_off_anyway(self) -> None:
        training = stack(WrongMode(), "0:Linear", "1:Dropout", "2:Linear")
        assert training.run(3, activation_training=0.0, activation_std=1.0, dropout_rate={"1": 0.0}).codes() == []

    def test_masks_that_checkpointing_draws_again(self) -> None:
        parts = ("block:Block", "block.drop:Dropout", "head:Linear")
        training = stack(WrongMode(), *parts).run(1, recomputed_apart={"block": 1.0, "block.drop": 1.0})
        assert training.codes() == []
        (finding,) = training.run(1, recomputed_apart={"block": 1.0, "block.drop": 1.0}).findings()
        assert (finding.layers, finding.severity.is_alarm) == (("block.drop",), True)
        kept = stack(WrongMode(), *parts).run(9, recomputed_apart={"block": 0.0, "block.drop": 0.0})
        assert kept.codes() == []


class TestUnfitNormalisation:
    def test_statistics_of_two_values(self) -> None:
        training = stack(UnfitNormalisation(), *NET)
        training.run(1, activation_training=1.0, norm_values={"norm": 2.0})
        training.run(1, activation_training=1.0, norm_values={"norm": 64.0})
        assert training.codes() == []
        training.run(2, activation_training=1.0, norm_values={"norm": 2.0})
        assert training.findings()[0].layers == ("norm",)

    @pytest.mark.parametrize(("rows", "codes"), [(2.0, ["MOD002"]), (64.0, [])])
    def test_two_pictures_have_many_values_and_are_two_samples(self, rows: float, codes: list[str]) -> None:
        training = stack(UnfitNormalisation(), *NET)
        measured: dict[str, Any] = {"activation_training": 1.0, "norm_values": {"norm": 128.0}}
        training.run(2, **measured, norm_samples={"norm": rows})
        assert training.codes() == codes

    def test_one_and_the_same_picture_has_statistics_without_noise(self) -> None:
        measured: dict[str, Any] = {"activation_training": 1.0, "norm_values": {"norm": 128.0}}
        training = stack(UnfitNormalisation(), *NET)
        training.run(9, scalars={"input_std": 0.7}, **measured, norm_samples={"norm": 1.0})
        assert training.codes() == []

    @pytest.mark.parametrize(
        ("setting", "healthy", "bad"),
        [
            ("norm_eps", 1e-3, 1.0),
            ("norm_eps", 1e-12, 0.0),
            ("norm_momentum", 0.01, 0.0),
            ("norm_momentum", 0.3, 0.99),
        ],
    )
    def test_settings_out_of_range(self, setting: str, healthy: float, bad: float) -> None:
        module = "norm"
        fine: dict[str, Any] = {"activation_training": 1.0, setting: {module: healthy}}
        training = stack(UnfitNormalisation(), *NET).run(3, **fine)
        assert training.codes() == []
        training.run(1, **{**fine, setting: {module: bad}})
        assert training.findings()[0].layers == (module,)
        assert not training.run(1, **fine).findings()[0].ongoing

    def test_a_momentum_next_to_zero_in_a_new_normalisation(self) -> None:
        settings: dict[str, Any] = {"activation_training": 1.0, "norm_momentum": {"norm": 0.001}}
        new = {"weight_norm": {"norm.weight": math.sqrt(8)}, "update_norm": 0.0, "update_ratio": 0.0}
        training = stack(UnfitNormalisation(), *NET).run(3, **settings, **new)
        assert training.findings()[0].layers == ("norm",)
        training.step = 5000  # by now the averages are those of the data
        assert not training.run(1, **settings, **new).findings()[0].ongoing
        assert (
            stack(UnfitNormalisation(), *NET).run(3, **settings | {"norm_momentum": {"norm": 0.01}}, **new).codes()
            == []
        )
        trained = new | {"weight_norm": {"norm.weight": 2.1}}
        assert stack(UnfitNormalisation(), *NET).run(3, **settings, **trained).codes() == []


def inputs(mean: float, deviation: float, largest: float) -> dict[str, float]:
    return {"input_mean": mean, "input_std": deviation, "input_max_abs": largest}


class TestBadlyScaledInputs:
    @pytest.mark.parametrize(
        "values", [(1000.0, 1500.0, 5000.0), (130.0, 0.4, 131.0), (8.0, 0.1, 8.4), (0.0, 1e-4, 1e-3)]
    )
    def test_not_scaled(self, values: tuple[float, float, float]) -> None:
        training = stack(BadlyScaledInputs(), "0:Linear", "1:ReLU", "2:Linear").run(2, scalars=inputs(*values))
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.detected_step) == ("DAT001", ("0",), 1)
        assert not training.run(1, scalars=inputs(0.0, 1.0, 3.0)).findings()[0].ongoing

    @pytest.mark.parametrize(
        "values",
        [(0.0, 1.0, 5.0), (0.3, 0.4, 1.0), (5e-4, 0.02, 1.0), (-6.0, 4.0, 16.0), (0.0, 0.02, 0.3), (2.0, 0.0, 2.0)],
    )
    def test_scaled(self, values: tuple[float, float, float]) -> None:
        training = stack(BadlyScaledInputs(), "0:Linear", "1:ReLU", "2:Linear").run(5, scalars=inputs(*values))
        assert training.codes() == []

    def test_one_bad_batch_is_another_fault(self) -> None:
        training = stack(BadlyScaledInputs(), "0:Linear", "2:Linear").run(2, scalars=inputs(0.0, 1.0, 3.0))
        training.run(1, scalars=inputs(0.0, 1e4, 3e4)).run(3, scalars=inputs(0.0, 1.0, 3.0))
        assert training.codes() == []

    @pytest.mark.parametrize("parts", [("0:BatchNorm1d", "1:Linear"), ("0:Conv2d", "1:BatchNorm2d", "2:Linear")])
    def test_a_normalisation_takes_any_scale(self, parts: tuple[str, ...]) -> None:
        assert stack(BadlyScaledInputs(), *parts).run(5, scalars=inputs(100.0, 80.0, 255.0)).codes() == []

    def test_a_residual_stream_goes_around_its_first_normalisation(self) -> None:
        training = stack(BadlyScaledInputs(), "enter:Linear", "norm:LayerNorm", "up:Linear", "leave:Linear")
        around = LayerGraph(training.graph.nodes, (*training.graph.edges, (0, 3)), GraphSource.AUTOGRAD)
        training.engine.set_layers(training.layers, around)
        assert training.run(2, scalars=inputs(100.0, 80.0, 255.0)).codes() == ["DAT001"]

    def test_data_that_turn_odd_later_are_no_matter_of_scaling(self) -> None:
        training = stack(BadlyScaledInputs(), "0:Linear")
        training.run(9, scalars={"input_mean": 0.0, "input_std": 1.0, "input_max_abs": 3.0})
        training.run(9, scalars={"input_mean": 50.0, "input_std": 400.0, "input_max_abs": 3000.0})
        assert training.codes() == []


TARGETS = {"target_mean": 5e4, "target_std": 3e4, "prediction_mean": 0.1, "prediction_std": 0.3}


class TestBadlyScaledTargets:
    def test_out_of_reach(self) -> None:
        training = stack(BadlyScaledTargets(), "0:Linear")
        training.run(60, scalars={"loss": 3e9, **TARGETS})
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.detected_step) == ("DAT003", (), 40)

    @pytest.mark.parametrize(("times", "found"), [(1.0, ["DAT003"]), (1e-3, [])])
    def test_huge_ones_are_out_of_reach_though_a_little_is_learnt(self, times: float, found: list[str]) -> None:
        targets = TARGETS | {"target_mean": 5e4 * times, "target_std": 3e4 * times}
        training = stack(BadlyScaledTargets(), "0:Linear")
        for step in range(60):
            training.run(1, scalars={"loss": 3e9 * 0.997**step, **targets})
        assert training.codes() == found

    def test_torn_apart(self) -> None:
        training = stack(BadlyScaledTargets(), "0:Linear").run(2, scalars={"loss": 3e9, **TARGETS})
        training.run(1, scalars={"loss": float("nan"), **TARGETS})
        assert training.findings()[0].detected_step == 2

    def test_large_targets_that_are_learnt_are_healthy(self) -> None:
        training = stack(BadlyScaledTargets(), "0:Linear")
        for step in range(80):
            training.run(1, scalars={"loss": 3e9 * 0.97**step, **TARGETS})
        assert training.codes() == []

    def test_tasks_in_turn_have_losses_of_their_own(self) -> None:
        training = stack(BadlyScaledTargets(), "0:Linear")
        for step in range(60):
            squared = {"loss": 3e9 * 0.97**step, **TARGETS}
            training.run(1, scalars={"loss": 1.1}).run(1, scalars=squared)
        assert training.codes() == []

    @pytest.mark.parametrize(("adaptive", "found"), [(math.nan, ["DAT003"]), (1e4, [])])
    def test_clipped_away(self, adaptive: float, found: list[str]) -> None:
        training = stack(BadlyScaledTargets(), "0:Linear")
        for step in range(39):
            training.run(
                1,
                scalars={"loss": 3e9 * 0.999**step, **TARGETS},
                streams=("gradient", "weight", "update", "activation", "optimizer"),
                gradient_norm=1e5, stepped_gradient_norm=1.0, optimizer_eps_ratio=adaptive,
            )  # fmt: skip
        assert training.codes() == found

    def test_errors_of_a_loss_by_hand(self) -> None:
        by_hand = {"loss_kind": 3.0, "loss_factor": 1.0, "loss_reduction": 1.0}
        training = stack(BadlyScaledTargets(), "0:Linear")
        training.run(60, scalars={"loss": 1e6, **by_hand}, activation_mean=0.0, activation_std=0.5)
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.detected_step) == ("DAT003", (), 40)
        training = stack(BadlyScaledTargets(), "0:Linear")
        training.run(60, scalars={"loss": 9.0, **by_hand}, activation_mean=0.0, activation_std=0.5)
        assert training.codes() == []
        training = stack(BadlyScaledTargets(), "0:Linear")  # a dead output has no size to compare with
        training.run(60, scalars={"loss": 1e6, **by_hand}, activation_mean=0.0, activation_std=0.0)
        assert training.codes() == []

    def test_targets_beyond_the_range_of_the_output(self) -> None:
        by_hand = {"loss_kind": 4.0, "loss_factor": 1.0, "loss_reduction": 1.0}
        training = stack(BadlyScaledTargets(), "0:Linear", "squash:Sigmoid")
        training.run(4, scalars={"loss": 27.0, **by_hand}, activation_mean=0.5, activation_std=0.1)
        (finding,) = training.findings()
        assert (finding.layers[0], finding.detected_step) == ("squash", 1)
        training = stack(BadlyScaledTargets(), "0:Linear", "squash:Sigmoid")
        training.run(9, scalars={"loss": 0.6, **by_hand}, activation_mean=0.5, activation_std=0.1)
        assert training.codes() == []

    @pytest.mark.parametrize(("mean", "found"), [(4.0, ["DAT003"]), (0.8, [])])
    def test_known_targets_beyond_the_range_of_the_output(self, mean: float, found: list[str]) -> None:
        targets = {"target_mean": mean, "target_std": 0.3, "prediction_mean": 0.5, "prediction_std": 0.1}
        training = stack(BadlyScaledTargets(), "0:Linear", "squash:Tanh").run(4, scalars={"loss": 9.0, **targets})
        assert training.codes() == found

    @pytest.mark.parametrize(("mean", "found"), [(-4.0, ["DAT003"]), (4.0, [])])
    def test_targets_below_zero_behind_a_relu(self, mean: float, found: list[str]) -> None:
        targets = {"target_mean": mean, "target_std": 0.3, "prediction_mean": 0.5, "prediction_std": 0.1}
        training = stack(BadlyScaledTargets(), "0:Linear", "out:ReLU").run(4, scalars={"loss": 9.0, **targets})
        assert training.codes() == found

    def test_targets_beyond_the_range_of_a_function_without_a_module(self) -> None:
        targets = {"target_mean": 4.0, "target_std": 0.3, "prediction_mean": 0.5, "prediction_std": 0.1}
        training = stack(BadlyScaledTargets(), "0:Linear", "1:Linear")
        training.run(4, scalars={"loss": 9.0, **targets}, activation_saturated_fraction={"1": 0.0})
        assert [finding.layers[0] for finding in training.findings()] == ["1"]

    def test_what_was_learnt_before_it_is_lost_was_in_reach(self) -> None:
        training = stack(BadlyScaledTargets(), "0:Linear")
        for step in range(20):
            training.run(1, scalars={"loss": 3e9 * 0.8**step, **TARGETS})
        assert training.run(1, scalars={"loss": float("nan"), **TARGETS}).codes() == []

    def test_usual_targets_are_not_judged(self) -> None:
        training = stack(BadlyScaledTargets(), "0:Linear")
        training.run(
            60,
            scalars={"loss": 1.0, "target_mean": 0.0, "target_std": 3.0, "prediction_mean": 0.0, "prediction_std": 0.3},
        )
        assert training.codes() == []
