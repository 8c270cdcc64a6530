"""OPT001 to OPT008 on frames made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.random import default_rng
from tests.detect.building import Training
from tests.detect.stacks import stack

from undertow.detect.engine import Engine
from undertow.detect.rule import Rule
from undertow.detect.rules.defeating_setting import DefeatingSetting
from undertow.detect.rules.diverging_loss import DivergingLoss
from undertow.detect.rules.loss_spike import LossSpike
from undertow.detect.rules.not_learning import NotLearning
from undertow.detect.rules.oscillating_loss import OscillatingLoss
from undertow.schema.severity import Severity


def training(rule: Rule) -> Training:
    made = Training("first", "second", "head")
    made.engine = Engine([rule])
    made.engine.set_layers(made.layers, made.graph)
    return made


def cross_entropy(run: Training, losses: Iterable[float]) -> Training:
    for loss in losses:
        run.run(1, scalars={"loss": float(loss), "lr": 0.1, "loss_kind": 1.0, "loss_classes": 10.0})
    return run


def follow(run: Training, losses: Iterable[float], rates: Iterable[float] | None = None, **changes: Any) -> Training:
    steady = rates or iter(lambda: 0.1, None)
    for loss, rate in zip(losses, steady):
        run.run(1, scalars={"loss": float(loss), "lr": rate}, **changes)
    return run


def noisy(levels: Iterable[float], share: float = 0.03, seed: int = 0) -> Iterator[float]:
    generator = default_rng(seed)
    return (float(level * math.exp(share * generator.standard_normal())) for level in levels)


def falling(steps: int, to: float = 0.1) -> Iterator[float]:
    return noisy(np.geomspace(2.3, 2.3 * to, steps))


class TestDivergingLoss:
    def test_records_again_and_again(self) -> None:
        run = cross_entropy(training(DivergingLoss()), noisy(np.geomspace(2.3, 230, 30)))
        (finding,) = run.findings()
        assert (finding.code, finding.severity, finding.ongoing) == ("OPT001", Severity.SEVERE, True)
        assert finding.detected_step <= 15

    def test_one_leap_at_the_start_that_stays(self) -> None:
        (finding,) = cross_entropy(training(DivergingLoss()), [2.3, *noisy(np.geomspace(140, 60, 30))]).findings()
        assert (finding.code, finding.severity) == ("OPT001", Severity.SEVERE)
        assert finding.detected_step <= 11
        assert cross_entropy(training(DivergingLoss()), [2.3, 140, 70, 30, *noisy([2.3] * 30)]).codes() == []

    def test_what_had_learnt_was_not_thrown_off_by_its_first_steps(self) -> None:
        losses = [*noisy(np.geomspace(2.3, 0.01, 30)), *noisy(np.geomspace(12.0, 0.5, 50))]
        summaries = [finding.summary for finding in cross_entropy(training(DivergingLoss()), losses).findings()]
        assert not any("threw" in summary for summary in summaries)

    def test_first_steps_that_make_a_classifier_worse_than_a_guess(self) -> None:
        thrown = [2.3, *noisy([4.2] * 20), *noisy(np.geomspace(4.0, 1.5, 30))]
        run = cross_entropy(training(DivergingLoss()), thrown)
        (finding,) = run.findings()
        assert (finding.code, finding.severity, finding.ongoing) == ("OPT001", Severity.MODERATE, False)
        assert finding.detected_step <= 11
        assert cross_entropy(training(DivergingLoss()), [2.3, *noisy([2.9] * 30)]).codes() == []
        assert cross_entropy(training(DivergingLoss()), [2.3, 6.0, 5.0, 4.0, *noisy([2.3] * 30)]).codes() == []

    def test_a_loss_that_grows_with_its_targets_is_a_hint(self) -> None:
        run = follow(training(DivergingLoss()), noisy(np.geomspace(0.1, 2, 60)))
        assert [finding.severity for finding in run.findings()] == [Severity.MILD]

    def test_large_updates_are_the_witness_where_the_loss_has_no_natural_size(self) -> None:
        run = follow(training(DivergingLoss()), noisy(np.geomspace(0.1, 2, 60)), update_ratio=0.5, update_norm=5.0)
        assert run.alarms() == ["OPT001"]

    def test_a_cross_entropy_below_that_of_a_guess_has_not_diverged(self) -> None:
        assert cross_entropy(training(DivergingLoss()), noisy(np.geomspace(0.01, 1, 60))).codes() == []

    def test_all_that_was_learnt_is_lost(self) -> None:
        run = follow(training(DivergingLoss()), falling(60))
        run = follow(follow(run, noisy([2.3] * 2), update_ratio=0.5, update_norm=5.0), noisy([2.3] * 40))
        assert run.alarms() == ["OPT001"]
        assert "is lost" in run.findings()[0].summary

    def test_a_classifier_that_is_back_at_a_guess_needs_no_other_witness(self) -> None:
        run = cross_entropy(cross_entropy(training(DivergingLoss()), falling(60)), noisy([2.3] * 40))
        assert run.alarms() == ["OPT001"]

    @pytest.mark.parametrize(("later", "severity"), [(0.95, Severity.MILD), (0.3, Severity.SEVERE)])
    def test_beside_answers_that_stay_right_a_rising_loss_is_a_hint(self, later: float, severity: Severity) -> None:
        run = training(DivergingLoss())
        for step, loss in enumerate([*falling(40), *noisy(np.geomspace(0.23, 23, 60))]):
            right = 0.95 if 20 < step < 50 else 0.1 if step <= 20 else later
            scalars = {"loss": loss, "loss_kind": 1.0, "loss_classes": 10.0, "output_accuracy": right}
            run.run(1, scalars=scalars)
        assert {finding.severity for finding in run.findings()} == {severity}

    def test_a_term_that_is_given_more_and_more_weight_is_a_hint(self) -> None:
        run = follow(follow(training(DivergingLoss()), falling(20)), noisy(np.linspace(0.3, 2.4, 60)))
        run = follow(run, noisy([2.4] * 40))
        assert [finding.severity for finding in run.findings()] == [Severity.MILD]

    def test_one_jump_to_a_harder_task_is_silent(self) -> None:
        run = follow(training(DivergingLoss()), falling(100, to=0.01))
        follow(run, noisy(np.geomspace(2.5, 0.5, 100)))
        assert run.codes() == []

    def test_several_tasks_in_random_order_are_silent(self) -> None:
        sizes = default_rng(1).choice([0.02, 0.5, 2.3], 300)
        assert follow(training(DivergingLoss()), noisy([0.02] * 4 + list(sizes))).codes() == []

    @pytest.mark.parametrize("factor", [1e-5, 1.0, 1e5])
    def test_the_unit_of_the_loss_does_not_matter(self, factor: float) -> None:
        losses = [factor * loss for loss in noisy(np.geomspace(2.3, 230, 30))]
        assert [f.detected_step for f in follow(training(DivergingLoss()), losses).findings()] == [
            f.detected_step for f in follow(training(DivergingLoss()), noisy(np.geomspace(2.3, 230, 30))).findings()
        ]


class TestLossSpike:
    def test_a_spike_is_a_hint_and_an_alarm_once_it_is_over(self) -> None:
        run = cross_entropy(training(LossSpike()), falling(60))
        cross_entropy(run, [20.0])
        assert [finding.severity for finding in run.findings()] == [Severity.MILD]
        cross_entropy(run, noisy([0.23] * 4))
        (finding,) = run.findings()
        assert (finding.code, finding.severity, finding.first_step) == ("OPT003", Severity.MODERATE, 60)

    def test_other_data_that_are_learnt_little_by_little_stay_a_hint(self) -> None:
        run = cross_entropy(training(LossSpike()), falling(60))
        cross_entropy(run, [*noisy(np.geomspace(20.0, 0.23, 12)), *noisy([0.23] * 6)])
        assert [finding.severity for finding in run.findings()] == [Severity.MILD]

    def test_a_small_spike_of_a_loss_without_a_natural_size_stays_a_hint(self) -> None:
        run = follow(follow(training(LossSpike()), falling(60)), [5.0, *noisy([0.23] * 10)])
        assert [finding.severity for finding in run.findings()] == [Severity.MILD]

    def test_a_jump_that_stays_never_is_an_alarm(self) -> None:
        run = follow(follow(training(LossSpike()), falling(60)), noisy(np.geomspace(5, 1, 60)))
        assert run.alarms() == []

    def test_a_term_every_tenth_step_is_silent(self) -> None:
        losses = [loss + (5.0 if step % 10 == 9 else 0.0) for step, loss in enumerate(falling(200))]
        assert follow(training(LossSpike()), losses).codes() == []

    def test_a_restart_of_the_rate_explains_it(self) -> None:
        run = follow(training(LossSpike()), falling(60), [0.001] * 60)
        follow(run, [20.0, *noisy([0.23] * 20)], [0.1] * 21)
        assert run.codes() == []

    def test_batches_of_one_are_silent(self) -> None:
        losses = np.exp(default_rng(0).normal(-3, 2, 500))
        assert follow(training(LossSpike()), losses).codes() == []


class TestOscillatingLoss:
    def test_waves_under_a_constant_rate(self) -> None:
        waves = [1.0 + 0.8 * math.cos(step / 8) for step in range(250)]
        run = follow(follow(training(OscillatingLoss()), falling(30, to=0.5)), noisy(waves))
        assert run.alarms() == ["OPT004"]

    def test_waves_of_a_cyclic_rate_are_silent(self) -> None:
        waves = [1.0 + 0.8 * math.cos(step / 8) for step in range(250)]
        rates = [0.1 * (1.2 + math.cos(step / 8)) for step in range(250)]
        run = follow(follow(training(OscillatingLoss()), falling(30, to=0.5)), noisy(waves), rates)
        assert run.codes() == []

    def test_a_model_that_begins_anew_with_its_optimizer_makes_no_waves(self) -> None:
        waves = [*falling(30, to=0.5), *noisy([1.0 + 0.8 * math.cos(step / 8) for step in range(300)])]
        alarms: list[list[str]] = []
        for anew in (1.0, 0.0):
            run = training(OscillatingLoss())
            for step, loss in enumerate(waves):
                run.run(1, scalars={"loss": loss, "optimizer_made_anew": anew if step % 50 == 0 else 0.0})
            alarms.append(run.alarms())
        assert alarms == [[], ["OPT004"]]

    def test_harder_data_now_and_then_make_no_waves(self) -> None:
        stages = [*falling(40, to=0.2)] * 8
        assert follow(training(OscillatingLoss()), noisy(stages)).codes() == []

    def test_noise_and_several_tasks_are_silent(self) -> None:
        sizes = default_rng(2).choice([0.1, 0.5, 2.3], 400)
        assert follow(training(OscillatingLoss()), noisy(sizes)).codes() == []
        assert follow(training(OscillatingLoss()), noisy([1.0] * 400, share=0.5)).codes() == []

    def test_waves_that_die_out_are_silent(self) -> None:
        waves = [0.3 + 2.0 * math.exp(-step / 25) * (1 + 0.9 * math.cos(step / 8)) for step in range(300)]
        assert follow(training(OscillatingLoss()), noisy(waves, share=0.01)).alarms() == []


class TestNotLearning:
    def test_weights_that_moved_for_nothing(self) -> None:
        run = follow(training(NotLearning()), noisy([2.3] * 100, share=0.01), weight_drift=0.5)
        (finding,) = run.findings()
        assert (finding.code, finding.severity) == ("OPT005", Severity.MODERATE)
        assert finding.confidence < 0.7

    def test_a_task_that_becomes_harder(self) -> None:
        losses = noisy([*[1.6, 3.6, 4.1, 4.6, 4.7], *[5.2] * 200], share=0.005)
        assert follow(training(NotLearning()), losses, weight_drift=0.5).codes() == []

    def test_weights_that_hardly_moved_get_more_time(self) -> None:
        run = follow(training(NotLearning()), noisy([2.3] * 300, share=0.01), weight_drift=0.1)
        assert run.codes() == []
        follow(run, noisy([2.3] * 150, share=0.01), weight_drift=0.1)
        assert run.codes() == ["OPT005"]

    @pytest.mark.parametrize(("samples", "found"), [(4.0, ["OPT005"]), (0.05, [])])
    def test_a_large_table_gets_more_time(self, samples: float, found: list[str]) -> None:
        run = stack(NotLearning(), "table:Embedding", "0:Linear")  # of eight rows
        for loss in noisy([2.3] * 120, share=0.01):
            run.run(1, scalars={"loss": loss, "loss_rows": samples}, weight_drift=0.5)
        assert run.codes() == found

    def test_a_classifier_that_is_no_better_than_a_guess(self) -> None:
        def detected(level: float, steps: int = 300) -> list[int]:
            run, facts = training(NotLearning()), {"loss_kind": 1.0, "loss_classes": 2.0, "loss_reduction": 1.0}
            for loss in noisy([0.75] * 5 + [level] * steps, share=0.02):
                run.run(1, scalars={"loss": loss, **facts}, weight_drift=0.1)
            return [finding.detected_step for finding in run.findings()]

        assert detected(0.693) == [149]
        assert detected(0.65) == []
        assert detected(0.693, steps=100) == []

    def test_many_classes_get_more_time(self) -> None:
        run = training(NotLearning())
        for loss in noisy([7.6] * 500, share=0.005):
            run.run(1, scalars={"loss": loss, "loss_classes": 2000.0}, weight_drift=0.5)
        assert run.codes() == []

    def test_slow_learning_noisy_losses_and_rewards_are_silent(self) -> None:
        assert follow(training(NotLearning()), falling(500, to=0.8), weight_drift=0.5).codes() == []
        assert follow(training(NotLearning()), noisy([2.3] * 500, share=0.2), weight_drift=0.5).codes() == []
        rewards = default_rng(0).normal(0, 0.1, 500)
        assert follow(training(NotLearning()), rewards, weight_drift=0.5).codes() == []

    def test_a_warm_up_does_not_count(self) -> None:
        rates = [0.1 * min(1.0, (step + 1) / 200) for step in range(220)]
        assert follow(training(NotLearning()), noisy([2.3] * 220, 0.01), rates, weight_drift=0.5).codes() == []

    def test_a_classifier_that_knows_how_common_each_answer_is_and_no_more(self) -> None:
        known = {
            "loss_kind": 1.0, "loss_classes": 10.0, "loss_reduction": 1.0, "loss_rows": 64.0,
            "label_entropy_pooled": 1.5, "lr": 0.1,
        }  # fmt: skip
        for level, codes in ((1.5, ["OPT005"]), (1.4, [])):
            run = training(NotLearning())
            for loss in [3.0, 2.5, 2.0, 1.8, *noisy([level] * 160, 0.01)]:
                run.run(1, scalars=known | {"loss": loss})
            assert run.codes() == codes


class TestDefeatingSetting:
    STREAMS = ("gradient", "weight", "update", "activation", "optimizer")
    ADAM: ClassVar[dict[str, float]] = {
        "optimizer_rate": 1e-3, "optimizer_weight_decay": 0.01, "optimizer_momentum": 0.9, "optimizer_rebuilt": 0.0,
        "optimizer_eps_ratio": 1e5, "optimizer_gradient_rms": 1.0,
    }  # fmt: skip

    def run(self, losses: Iterable[float], **changes: Any) -> Training:
        run = training(DefeatingSetting())
        for loss in losses:
            settings = {**self.ADAM, "optimizer_step_count": float(run.step + 1), **changes}
            settings = {name: value(run.step) if callable(value) else value for name, value in settings.items()}
            run.run(1, scalars={"loss": loss}, streams=self.STREAMS, **settings)
        return run

    def test_usual_settings_are_silent(self) -> None:
        assert self.run(falling(100)).codes() == []

    def test_an_optimizer_for_every_step(self) -> None:
        run = self.run(falling(10), optimizer_rebuilt=1.0, optimizer_step_count=1.0)
        (finding,) = run.findings()
        assert (finding.code, finding.severity, finding.detected_step) == ("OPT008", Severity.SEVERE, 2)
        assert finding.evidence[0].quantity == "optimizer_rebuilt"

    def test_a_new_optimizer_now_and_then_is_silent(self) -> None:
        run = self.run(
            falling(100),
            optimizer_rebuilt=lambda step: float(step % 20 == 0),
            optimizer_step_count=lambda step: float(step % 20 + 1),
        )
        assert run.codes() == []

    def test_plain_sgd_has_no_memory_to_lose(self) -> None:
        run = self.run(falling(50), optimizer_rebuilt=1.0, optimizer_step_count=math.nan, optimizer_momentum=0.0)
        assert run.codes() == []

    def test_eps_above_every_gradient(self) -> None:
        run = self.run(noisy([2.3] * 10, 0.01), optimizer_eps_ratio=0.01, update_ratio=1e-5, update_norm=1e-5)
        assert run.alarms() == ["OPT008"]
        assert run.findings()[0].evidence[0].quantity == "optimizer_eps_ratio"

    def test_gradients_that_vanish_in_some_layers_are_not_the_fault_of_eps(self) -> None:
        ratios = {"first.weight": 1e-9, "second.weight": 1e-6, "third.weight": 0.01, "head.weight": 1e5}
        run = self.run(noisy([2.3] * 10, 0.01), optimizer_eps_ratio=ratios, update_ratio=1e-5, update_norm=1e-5)
        assert run.codes() == []

    def test_gradients_that_fade_later_are_not_the_fault_of_eps(self) -> None:
        run = self.run(
            noisy([2.3] * 20, 0.01), optimizer_eps_ratio=lambda step: 1e4 if step < 8 else 1e-6,
            update_ratio=1e-5, update_norm=1e-5,
        )  # fmt: skip
        assert run.codes() == []

    def test_gradients_below_eps_by_success_are_silent(self) -> None:
        def ratio(step: int) -> float:
            return 10.0 if step < 60 else 0.01

        run = self.run(falling(100, to=1e-4), optimizer_eps_ratio=ratio, update_ratio=1e-5, update_norm=1e-5)
        assert run.codes() == []

    def test_weight_decay_that_eats_the_weights(self) -> None:
        run = self.run(
            noisy([2.3] * 10, 0.01), optimizer_weight_decay=50.0, optimizer_rate=3e-3,
            weight_norm=lambda step: 0.85**step,
        )  # fmt: skip
        (finding,) = run.findings()
        assert finding.detected_step <= 3
        assert finding.evidence[0].quantity == "optimizer_weight_decay"

    def test_weight_decay_of_one_group(self) -> None:
        run = self.run(
            falling(10), optimizer_weight_decay={"first.weight": 50.0, "second.weight": 0.01, "head.weight": 0.0},
            optimizer_rate=3e-3, weight_norm=lambda step: {"first.weight": 0.85**step, "second.weight": 1.0},
        )  # fmt: skip
        (finding,) = run.findings()
        assert (finding.layers, finding.detected_step <= 3) == (("first.weight",), True)

    def test_weight_decay_of_what_is_no_matrix(self) -> None:
        run = self.run(
            falling(10), optimizer_weight_decay={"first.bias": 50.0}, optimizer_rate=3e-3,
            weight_norm=lambda step: {"first.bias": 0.85**step},
        )  # fmt: skip
        assert [finding.layers for finding in run.findings()] == [("first.bias",)]

    def test_weight_decay_that_the_weights_bear_is_silent(self) -> None:
        assert self.run(falling(100), optimizer_weight_decay=0.1, optimizer_rate=1e-2).codes() == []
        run = self.run(falling(100), optimizer_weight_decay=1.0, optimizer_rate=3e-3, weight_norm=lambda s: 0.997**s)
        assert run.codes() == []

    def test_momentum_that_never_forgets(self) -> None:
        losses = [*falling(40, to=0.3), *noisy([0.8] * 60, 0.2)]
        run = self.run(losses, optimizer_momentum=0.999)
        assert run.alarms() == ["OPT008"]
        assert self.run(losses, optimizer_momentum=0.9).codes() == []
        assert self.run(falling(200), optimizer_momentum=0.997).codes() == []
        assert self.run(falling(20), optimizer_momentum=0.999).alarms() == ["OPT008"]  # in no recipe

    @pytest.mark.parametrize(("every", "alarms"), [(10, ["OPT008"]), (60, [])])
    @pytest.mark.parametrize("slower", [1.0, 0.5])
    def test_an_optimizer_of_every_epoch(self, every: int, alarms: list[str], slower: float) -> None:
        run, rate = training(DefeatingSetting()), 0.1
        for loss in falling(200):
            anew = run.step > 0 and run.step % every == 0
            rate *= slower if anew else 1.0
            scalars = {"loss": loss, "lr": rate} | ({"optimizer_made_anew": 1.0} if anew else {})
            run.run(1, scalars=scalars, streams=self.STREAMS, **self.ADAM)
        assert run.alarms() == (alarms if slower == 1.0 else [])

    def test_an_unusual_eps_above_the_gradients(self) -> None:
        for eps, alarms in ((1e-2, ["OPT008"]), (1e-8, [])):
            run = training(DefeatingSetting())
            for loss in falling(10, to=0.9):
                scalars = {"loss": loss, "optimizer_eps": eps}
                run.run(1, scalars=scalars, streams=self.STREAMS, **{**self.ADAM, "optimizer_eps_ratio": 0.4})
            assert run.alarms() == alarms

    @pytest.mark.parametrize(
        ("betas", "codes"), [((0.999, 0.9), ["OPT008"]), ((0.9, 0.5), []), ((0.99, 0.95), []), ((0.9, 0.999), [])]
    )
    def test_betas_that_are_exchanged(self, betas: tuple[float, float], codes: list[str]) -> None:
        memory = (1 - betas[1]) / (1 - betas[0])
        run = training(DefeatingSetting())
        for loss in falling(20):
            settings = {**self.ADAM, "optimizer_step_count": float(run.step + 1), "optimizer_momentum": betas[0]}
            scalars = {"loss": loss} | ({"optimizer_memory_ratio": memory} if run.step < 16 else {})
            run.run(1, scalars=scalars, streams=self.STREAMS, **settings)
        assert run.alarms()[:1] == codes
        assert all(finding.ongoing for finding in run.findings())

    @pytest.mark.parametrize(("second", "codes"), [(0.9999, ["OPT008"]), (0.999, [])])
    def test_a_second_moment_that_remembers_too_long(self, second: float, codes: list[str]) -> None:
        run = training(DefeatingSetting())
        for step in range(80):
            size = 0.1 if step < 60 else 2.0  # of each number, over the rate
            scalars = {"loss": 0.01 if step < 60 else 3.0, "lr": 0.001}
            scalars |= {"optimizer_memory_ratio": (1 - second) / 0.1} if step < 16 else {}
            parameters = run.layers.parameters[0].parameter_count
            run.run(1, scalars=scalars, update_norm=0.001 * size * parameters**0.5, update_ratio=0.01)
        assert run.alarms() == codes

    def test_a_second_moment_that_lags(self) -> None:
        losses = [*noisy([0.3] * 60), 0.3, 0.9, 20.0, 30.0]
        run = self.run(losses, optimizer_gradient_rms=lambda step: 20.0 if step >= 60 else 1.0)
        assert run.alarms() == ["OPT008"]

    def test_harder_data_that_are_learnt_are_silent(self) -> None:
        losses = [*noisy([0.3] * 60), 9.0, 8.0, 7.0, 5.0, 4.0, 3.0]
        run = self.run(losses, optimizer_gradient_rms=lambda step: 20.0 if step >= 60 else 1.0)
        assert run.codes() == []
