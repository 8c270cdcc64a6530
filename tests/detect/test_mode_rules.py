"""DAT001 and DAT003 on frames made by hand."""

from __future__ import annotations

import math

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.badly_scaled_inputs import BadlyScaledInputs
from undertow.detect.rules.badly_scaled_targets import BadlyScaledTargets
from undertow.schema.graph import GraphSource, LayerGraph


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
