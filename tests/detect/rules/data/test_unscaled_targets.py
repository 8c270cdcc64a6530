"""DAT003 on frames made by hand: targets that are not scaled, or beyond the range of the output."""

from __future__ import annotations

import math

import pytest
from tests.detect.stacks import stack

from undertow.detect.rules.data.unscaled_targets import UnscaledTargets

TARGETS = {"target_mean": 5e4, "target_std": 3e4, "prediction_mean": 0.1, "prediction_std": 0.3}


class TestTargetScale:
    def test_out_of_reach(self) -> None:
        training = stack(UnscaledTargets, "0:Linear")
        training.run(60, scalars={"loss": 3e9, **TARGETS})
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.detected_step) == ("DAT003", (), 40)

    @pytest.mark.parametrize(("times", "found"), [(1.0, ["DAT003"]), (1e-3, [])])
    def test_huge_ones_are_out_of_reach_though_a_little_is_learnt(self, times: float, found: list[str]) -> None:
        targets = TARGETS | {"target_mean": 5e4 * times, "target_std": 3e4 * times}
        training = stack(UnscaledTargets, "0:Linear")
        for step in range(60):
            training.run(1, scalars={"loss": 3e9 * 0.997**step, **targets})
        assert training.codes() == found

    def test_torn_apart(self) -> None:
        training = stack(UnscaledTargets, "0:Linear").run(2, scalars={"loss": 3e9, **TARGETS})
        training.run(1, scalars={"loss": float("nan"), **TARGETS})
        assert training.findings()[0].detected_step == 2

    def test_large_targets_that_are_learnt_are_healthy(self) -> None:
        training = stack(UnscaledTargets, "0:Linear")
        for step in range(80):
            training.run(1, scalars={"loss": 3e9 * 0.97**step, **TARGETS})
        assert training.codes() == []

    def test_targets_that_were_learnt_once_can_be(self) -> None:
        training = stack(UnscaledTargets, "0:Linear")
        for step in range(140):
            training.run(1, scalars={"loss": 3e9 * (0.95**step if step < 80 else 1.0), **TARGETS})
        assert training.codes() == []

    def test_tasks_in_turn_have_losses_of_their_own(self) -> None:
        training = stack(UnscaledTargets, "0:Linear")
        for step in range(60):
            squared = {"loss": 3e9 * 0.97**step, **TARGETS}
            training.run(1, scalars={"loss": 1.1}).run(1, scalars=squared)
        assert training.codes() == []

    @pytest.mark.parametrize(("adaptive", "found"), [(math.nan, ["DAT003"]), (1e4, [])])
    def test_clipped_away(self, adaptive: float, found: list[str]) -> None:
        training = stack(UnscaledTargets, "0:Linear")
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
        training = stack(UnscaledTargets, "0:Linear")
        training.run(60, scalars={"loss": 1e6, **by_hand}, activation_mean=0.0, activation_std=0.5)
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.detected_step) == ("DAT003", (), 40)
        training = stack(UnscaledTargets, "0:Linear")
        training.run(60, scalars={"loss": 9.0, **by_hand}, activation_mean=0.0, activation_std=0.5)
        assert training.codes() == []
        training = stack(UnscaledTargets, "0:Linear")  # a dead output has no size to compare with
        training.run(60, scalars={"loss": 1e6, **by_hand}, activation_mean=0.0, activation_std=0.0)
        assert training.codes() == []

    def test_targets_beyond_the_range_of_the_output(self) -> None:
        by_hand = {"loss_kind": 4.0, "loss_factor": 1.0, "loss_reduction": 1.0}
        training = stack(UnscaledTargets, "0:Linear", "squash:Sigmoid")
        training.run(4, scalars={"loss": 27.0, **by_hand}, activation_mean=0.5, activation_std=0.1)
        (finding,) = training.findings()
        assert (finding.layers[0], finding.detected_step) == ("squash", 1)
        training = stack(UnscaledTargets, "0:Linear", "squash:Sigmoid")
        training.run(9, scalars={"loss": 0.6, **by_hand}, activation_mean=0.5, activation_std=0.1)
        assert training.codes() == []

    @pytest.mark.parametrize(("mean", "found"), [(4.0, ["DAT003"]), (0.8, [])])
    def test_known_targets_beyond_the_range_of_the_output(self, mean: float, found: list[str]) -> None:
        targets = {"target_mean": mean, "target_std": 0.3, "prediction_mean": 0.5, "prediction_std": 0.1}
        training = stack(UnscaledTargets, "0:Linear", "squash:Tanh").run(4, scalars={"loss": 9.0, **targets})
        assert training.codes() == found

    @pytest.mark.parametrize(("mean", "found"), [(-4.0, ["DAT003"]), (4.0, [])])
    def test_targets_below_zero_behind_a_relu(self, mean: float, found: list[str]) -> None:
        targets = {"target_mean": mean, "target_std": 0.3, "prediction_mean": 0.5, "prediction_std": 0.1}
        training = stack(UnscaledTargets, "0:Linear", "out:ReLU").run(4, scalars={"loss": 9.0, **targets})
        assert training.codes() == found

    def test_targets_beyond_the_range_of_a_function_without_a_module(self) -> None:
        targets = {"target_mean": 4.0, "target_std": 0.3, "prediction_mean": 0.5, "prediction_std": 0.1}
        training = stack(UnscaledTargets, "0:Linear", "1:Linear")
        training.run(4, scalars={"loss": 9.0, **targets}, activation_saturated_fraction={"1": 0.0})
        assert [finding.layers[0] for finding in training.findings()] == ["1"]

    def test_what_was_learnt_before_it_is_lost_was_in_reach(self) -> None:
        training = stack(UnscaledTargets, "0:Linear")
        for step in range(20):
            training.run(1, scalars={"loss": 3e9 * 0.8**step, **TARGETS})
        assert training.run(1, scalars={"loss": float("nan"), **TARGETS}).codes() == []

    def test_usual_targets_are_not_judged(self) -> None:
        training = stack(UnscaledTargets, "0:Linear")
        training.run(
            60,
            scalars={"loss": 1.0, "target_mean": 0.0, "target_std": 3.0, "prediction_mean": 0.0, "prediction_std": 0.3},
        )
        assert training.codes() == []
