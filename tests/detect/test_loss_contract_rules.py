"""LSS001 to LSS004 on frames made by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from tests.detect.building import Training

from undertow.detect.engine import Engine
from undertow.detect.rule import Rule
from undertow.detect.rules.added_losses import AddedLosses
from undertow.detect.rules.broadcast_loss import BroadcastLoss
from undertow.detect.rules.wrong_loss_input import WrongLossInput
from undertow.detect.rules.wrong_sign import WrongSign
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

CROSS_ENTROPY = {"loss_kind": LossKind.CROSS_ENTROPY, "loss_classes": 10.0, "loss_rows": 64.0, "loss_factor": 1.0}


def training(rule: Rule) -> Training:
    made = Training("first", "second", "head")
    made.engine = Engine([rule])
    made.engine.set_layers(made.layers, made.graph)
    return made


class TestWrongLossInput:
    def test_probabilities_are_found_at_the_second_measured_step(self) -> None:
        run = training(WrongLossInput()).run(1, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 1.0})
        assert run.codes() == []
        run.run(3)  # not measured
        run.run(1, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 1.0})
        (finding,) = run.findings()
        assert (finding.code, finding.first_step, finding.detected_step) == ("LSS001", 0, 4)
        assert finding.severity is Severity.SEVERE
        assert finding.layers == ("head",)

    def test_logits_where_log_probabilities_belong(self) -> None:
        scalars = {"loss_kind": LossKind.NEGATIVE_LOG_LIKELIHOOD, "loss_input_is_logit": 1.0}
        (finding,) = training(WrongLossInput()).run(2, scalars=scalars).findings()
        assert finding.evidence[0].quantity == "loss_input_is_logit"
        assert "log-probabilities" in finding.summary

    def test_a_softmax_over_another_dimension(self) -> None:
        (finding,) = training(WrongLossInput()).run(2, scalars={**CROSS_ENTROPY, "loss_input_is_logit": 1.0}).findings()
        assert "dimension" in finding.summary

    def test_it_ends_when_the_input_is_right_again(self) -> None:
        run = training(WrongLossInput()).run(3, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 1.0})
        run.run(2, scalars={**CROSS_ENTROPY, "loss_input_is_probability": 0.0})
        assert [entry[0] for entry in run.log] == ["opened", "closed"]

    @pytest.mark.parametrize("value", [0.0, math.nan])
    def test_right_or_unknown_input_is_silent(self, value: float) -> None:
        scalars = {**CROSS_ENTROPY, "loss_input_is_probability": value, "loss_input_is_logit": value}
        assert training(WrongLossInput()).run(20, scalars=scalars).codes() == []


class TestBroadcastLoss:
    def test_it_opens_and_ends(self) -> None:
        run = training(BroadcastLoss()).run(2, scalars={"loss_broadcast": 1.0, "loss_rows": 64.0})
        assert run.alarms() == ["LSS002"]
        run.run(1, scalars={"loss_broadcast": 0.0})
        assert not run.findings()[0].ongoing

    def test_one_odd_batch_is_not_enough(self) -> None:
        run = training(BroadcastLoss())
        for _ in range(5):
            run.run(1, scalars={"loss_broadcast": 1.0}).run(1, scalars={"loss_broadcast": 0.0})
        assert run.codes() == []


class TestWrongSign:
    def test_a_loss_without_a_floor_by_its_form(self) -> None:
        run = training(WrongSign()).run(2, scalars={"loss": 4.0, "loss_without_floor": 1.0})
        (finding,) = run.findings()
        assert (finding.code, finding.first_step, finding.detected_step) == ("LSS003", 0, 1)
        assert training(WrongSign()).run(5, scalars={"loss": 4.0, "loss_without_floor": 0.0}).codes() == []

    @pytest.mark.parametrize(
        ("name", "loss"),
        [
            ("exponential", lambda step: 0.5 - 0.5 * 1.05**step),
            ("linear", lambda step: 1.0 - 0.2 * step),
            ("quadratic", lambda step: 1.0 - 0.01 * step**2),
            ("likelihood", lambda step: 0.05 - 4 * (1 - math.exp(-step / 40))),
            ("from nothing", lambda step: -0.01 * step),
        ],
    )
    def test_a_loss_that_falls_ever_faster(self, name: str, loss: Callable[[int], float]) -> None:
        run = training(WrongSign())
        for step in range(200):
            run.run(1, scalars={"loss": loss(step)})
        assert run.codes() == (["LSS003"] if name == "exponential" else [])

    def test_targets_that_are_the_inputs(self) -> None:
        run = training(WrongSign()).run(1, scalars={"targets_are_inputs": 1.0})
        assert run.codes() == []
        (finding,) = run.run(1, scalars={"targets_are_inputs": 1.0}).findings()
        assert (finding.code, finding.first_step, finding.detected_step) == ("LSS003", 0, 1)
        assert training(WrongSign()).run(5, scalars={"targets_are_inputs": 0.0}).codes() == []
        (finding,) = training(WrongSign()).run(2, scalars={"targets_are_inputs": 2.0}).findings()
        assert "wrong way" in finding.summary

    @pytest.mark.parametrize(("fall", "found"), [(0.95, ["LSS003"]), (0.99, [])])
    def test_targets_that_are_the_inputs_behind_a_code(self, fall: float, found: list[str]) -> None:
        run = training(WrongSign())
        for step in range(150):
            run.run(1, scalars={"loss": 3.0 * fall**step} | ({"targets_are_inputs": 0.5} if step < 16 else {}))
        assert run.codes() == found

    def test_a_negative_factor_of_an_error(self) -> None:
        run = training(WrongSign()).run(2, scalars={**CROSS_ENTROPY, "loss_factor": -1.0, "loss": -2.3})
        (finding,) = run.findings()
        assert (finding.code, finding.severity, finding.detected_step) == ("LSS003", Severity.SEVERE, 1)

    def test_a_sign_that_turns_between_measurements(self) -> None:
        run = training(WrongSign()).run(16, scalars={**CROSS_ENTROPY, "loss": 2.2}).run(20, scalars={"loss": 2.2})
        run.run(3, scalars={"loss": -2.2})
        (finding,) = run.findings()
        assert (finding.first_step, finding.detected_step) == (36, 37)

    def test_a_bonus_that_outweighs_a_small_error_is_silent(self) -> None:
        run = training(WrongSign()).run(16, scalars={**CROSS_ENTROPY, "loss": 2.2})
        for step in range(100):
            run.run(1, scalars={"loss": 2.2 * 0.9**step - 0.05})
        assert run.codes() == []

    def test_rewards_may_be_negative(self) -> None:
        run = training(WrongSign()).run(20, scalars={"loss_kind": LossKind.UNKNOWN, "loss_factor": -1.0, "loss": -2.3})
        assert run.codes() == []

    def test_a_small_negative_term_in_a_positive_loss_is_a_regulariser(self) -> None:
        run = training(WrongSign()).run(20, scalars={**CROSS_ENTROPY, "loss_factor": -0.01, "loss": 2.3})
        assert run.codes() == []

    def test_adversaries_in_turn_are_silent(self) -> None:
        run = training(WrongSign())
        for _ in range(20):
            run.run(1, scalars={**CROSS_ENTROPY, "loss": 0.7, "lr_0": 0.1})
            run.run(1, scalars={**CROSS_ENTROPY, "loss_factor": -1.0, "loss": -0.7, "lr_1": 0.1})
        assert run.codes() == []


class TestAddedLosses:
    def scalars(self, factor: float = 1.0, loss: float = 16 * math.log(10), passes: float = 16) -> dict[str, float]:
        return {**CROSS_ENTROPY, "loss_factor": factor, "loss": loss, "backward_count": passes}

    def test_large_updates_make_it_an_alarm(self) -> None:
        run = training(AddedLosses()).run(5, scalars=self.scalars(), update_ratio=0.5, update_norm=5.0)
        (finding,) = run.findings()
        assert (finding.code, finding.severity, finding.detected_step) == ("LSS004", Severity.SEVERE, 2)
        assert "16 micro-batches" in finding.summary

    def test_without_harm_it_is_a_hint(self) -> None:
        run = training(AddedLosses())
        for step in range(30):
            run.run(1, scalars=self.scalars(loss=16 * math.log(10) * 0.97**step))
        assert [finding.severity for finding in run.findings()] == [Severity.MILD]

    def test_a_first_batch_of_few_targets_says_little_of_a_guess(self) -> None:
        scalars = self.scalars(loss=1.6 * 8 * math.log(10), passes=8)
        assert training(AddedLosses()).run(5, scalars=scalars).codes() == ["LSS004"]
        scalars = self.scalars(loss=1.6 * 2 * math.log(10), passes=2)
        assert training(AddedLosses()).run(5, scalars=scalars).codes() == []

    def test_divided_losses_are_silent(self) -> None:
        run = training(AddedLosses()).run(30, scalars=self.scalars(1 / 16, math.log(10)), update_ratio=0.5)
        assert run.codes() == []

    def late(self, worse: float, passes: float) -> list[tuple[str, Severity, int]]:
        run = training(AddedLosses()).run(20, scalars=self.scalars(1 / 16, 0.5))
        run.run(20, scalars=self.scalars(loss=worse * passes * 0.5, passes=passes))
        return [(finding.code, finding.severity, finding.first_step) for finding in run.findings()]

    @pytest.mark.parametrize("passes", [16, 32])
    def test_losses_that_are_no_longer_divided(self, passes: float) -> None:
        assert self.late(10.0, passes) == [("LSS004", Severity.SEVERE, 20)]
        assert self.late(1.0, passes) == [("LSS004", Severity.MILD, 20)]

    def test_closures_of_one_batch_are_not_micro_batches(self) -> None:
        run = training(AddedLosses()).run(30, scalars=self.scalars(loss=math.log(10), passes=20), update_ratio=0.5)
        assert run.codes() == []

    def test_summed_reduction_is_silent(self) -> None:
        run = training(AddedLosses()).run(30, scalars=self.scalars(loss=64 * 16 * math.log(10)), update_ratio=0.5)
        assert run.codes() == []

    def test_one_pass_to_a_step_is_silent(self) -> None:
        run = training(AddedLosses()).run(30, scalars=self.scalars(loss=math.log(10), passes=1), update_ratio=0.5)
        assert run.codes() == []


class TestOutOfReach:
    def test_targets_that_the_output_cannot_reach(self) -> None:
        run = training(WrongSign()).run(2, scalars={"targets_beyond_reach": 0.5})
        (finding,) = run.findings()
        assert (finding.code, finding.layers, finding.detected_step) == ("LSS003", ("head",), 1)
        run.run(1, scalars={"targets_beyond_reach": 0.0})
        assert [entry[0] for entry in run.log] == ["opened", "closed"]

    def test_targets_that_are_no_probabilities(self) -> None:
        scalars = {"targets_beyond_reach": 0.5, "loss_kind": LossKind.BINARY_OF_LOGITS}
        (finding,) = training(WrongSign()).run(2, scalars=scalars).findings()
        assert (finding.code, finding.layers) == ("LSS003", ())
        assert "between 0 and 1" in finding.summary

    @pytest.mark.parametrize("share", [0.0, 0.05, math.nan])
    def test_noise_around_a_limit_is_silent(self, share: float) -> None:
        assert training(WrongSign()).run(20, scalars={"targets_beyond_reach": share}).codes() == []


class TestUnequalParts:
    def test_rows_of_small_micro_batches_that_count_more(self) -> None:
        run = training(AddedLosses()).run(4, scalars={"backward_count": 4.0, "micro_batch_spread": 3.0})
        (finding,) = run.findings()
        assert (finding.code, finding.severity, finding.detected_step) == ("LSS004", Severity.MODERATE, 3)
        assert "3 times" in finding.summary

    def test_a_small_last_batch_is_no_news(self) -> None:
        run = training(AddedLosses())
        for _ in range(5):
            run.run(3, scalars={"backward_count": 4.0, "micro_batch_spread": 1.2})
            run.run(1, scalars={"backward_count": 4.0, "micro_batch_spread": 8.0})
        assert run.codes() == []


def test_of_two_heads_the_one_that_the_loss_was_given_is_named() -> None:
    for rule, scalars in (
        (BroadcastLoss(), {"loss_broadcast": 1.0}),
        (WrongLossInput(), {**CROSS_ENTROPY, "loss_input_is_probability": 1.0}),
    ):
        run = training(rule)
        source = float(run.layers["second.bias"].id)
        (finding,) = run.run(2, scalars={**scalars, "loss_layer": source}).findings()
        assert finding.layers[-1] == "second"
        (finding,) = training(rule := type(rule)()).run(2, scalars=scalars).findings()
        assert finding.layers == ("head",)
