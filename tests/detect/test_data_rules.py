"""DAT002, DAT004, DAT005 and DAT006 on frames made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng
from tests.detect.building import Training

from undertow.detect.engine import Engine
from undertow.detect.rule import Rule
from undertow.detect.rules.bad_batch import BadBatch
from undertow.detect.rules.unrelated_targets import UnrelatedTargets
from undertow.detect.rules.zero_gradient import ZeroGradient
from undertow.schema.layers import Layer, LayerKind, LayerTable
from undertow.schema.quantities import LossKind, LossReduction
from undertow.schema.severity import Severity

CHANCE = math.log(10)


def training(rule: Rule) -> Training:
    made = Training("first", "second", "head")
    made.engine = Engine([rule])
    made.engine.set_layers(made.layers, made.graph)
    return made


def noisy(levels: Iterable[float], share: float = 0.02, seed: int = 0) -> Iterator[float]:
    generator = default_rng(seed)
    return (float(level * math.exp(share * generator.standard_normal())) for level in levels)


class TestBadBatch:
    def run(self, losses: Iterable[float], **odd: float) -> Training:
        """Sixty usual batches, then one with a leap of the loss, then usual ones."""
        run = training(BadBatch())
        for step, loss in enumerate(losses):
            usual = {"input_std": 1.0 + 0.1 * math.sin(step), "input_max_abs": 3.0, "label_entropy": 2.2}
            run.run(1, scalars={"loss": loss, **usual, **(odd if step == 60 else {})})
        return run

    def leap(self) -> list[float]:
        return [*noisy(np.geomspace(2.3, 0.3, 60)), 8.0, *noisy([0.3] * 40)]

    def test_inputs_of_another_size(self) -> None:
        run = self.run(self.leap(), input_std=1e4, input_max_abs=3e4)
        (finding,) = run.findings()
        assert (finding.code, finding.detected_step, finding.ongoing) == ("DAT002", 60, False)
        assert finding.severity.is_alarm
        assert finding.evidence[0].quantity.startswith("input_")

    def test_an_error_of_steady_targets_has_a_natural_size(self) -> None:
        """Of targets that move, as those of a value function, an error may well be larger than at the start."""
        for sizes, alarms in (((1.0, 1.2), ["DAT002"]), ((1.0, 4.0), [])):
            run = training(BadBatch())
            for step, loss in enumerate([*noisy(np.geomspace(2.3, 0.1, 60)), 3.2, *noisy([0.1] * 30)]):
                scalars = {"loss": loss, "loss_kind": LossKind.MEAN_SQUARE, "target_std": sizes[step % 2]}
                run.run(1, scalars=scalars)
            assert [finding.code for finding in run.findings() if finding.severity.is_alarm] == alarms

    def test_labels_that_are_all_alike(self) -> None:
        run = self.run(self.leap(), label_entropy=0.0)
        assert run.findings()[0].evidence[0].quantity == "label_entropy"

    def test_a_leap_of_the_loss_alone_is_told_with_less_confidence_once_it_is_over(self) -> None:
        (finding,) = self.run(self.leap()).findings()
        assert (finding.code, finding.first_step, finding.detected_step) == ("DAT002", 60, 63)
        assert finding.confidence < 0.7

    def test_a_leap_beyond_all_measure_need_not_come_back(self) -> None:
        (finding,) = self.run([*noisy(np.geomspace(2.3, 0.3, 60)), 400.0, *noisy([2.3] * 40)]).findings()
        assert (finding.code, finding.detected_step) == ("DAT002", 63)

    def test_a_loss_that_stays_beyond_all_measure_is_not_of_a_batch(self) -> None:
        assert self.run([*noisy(np.geomspace(2.3, 0.3, 60)), *noisy([400.0] * 40)]).codes() == []

    def test_a_leap_that_no_step_makes_is_told_at_once(self) -> None:
        (finding,) = self.run([*noisy(np.geomspace(2.3, 0.3, 60)), 5e6, math.nan, math.nan]).findings()
        assert (finding.code, finding.detected_step) == ("DAT002", 60)

    def test_a_leap_that_stays_is_silent(self) -> None:
        assert self.run([*noisy(np.geomspace(2.3, 0.3, 60)), *noisy(np.geomspace(5, 1, 40))]).codes() == []

    def test_odd_inputs_that_do_no_harm_are_silent(self) -> None:
        assert self.run(noisy([0.3] * 100), input_std=1e4).codes() == []

    def test_harder_data_of_twice_the_spread_are_silent(self) -> None:
        losses = [*noisy(np.geomspace(2.3, 0.3, 60)), *noisy(np.geomspace(5, 1, 40))]
        assert self.run(losses, input_std=2.5, input_max_abs=8.0).codes() == []


class TestUnrelatedTargets:
    def run(self, losses: Iterable[float], more: dict[str, Any] | None = None, **changes: Any) -> Training:
        run = training(UnrelatedTargets())
        healthy = {"gradient_cosine": 0.02, "update_ratio": 5e-3, "update_norm": 5e-3, "weight_drift": 0.5}
        for loss in losses:
            scalars = {"loss": loss, "loss_kind": 1.0, "loss_classes": 10.0, "output_accuracy": 0.1}
            run.run(1, scalars=scalars | (more or {}), **{**healthy, **changes})
        return run

    def test_at_chance_with_healthy_updates(self) -> None:
        run = self.run(noisy([CHANCE] * 120, 0.01))
        (finding,) = run.findings()
        assert (finding.code, finding.severity) == ("DAT004", Severity.MODERATE)
        assert finding.confidence <= 0.6

    def test_labels_of_which_some_are_rare_have_a_guess_of_their_own(self) -> None:
        rare: dict[str, Any] = {"label_entropy_pooled": 1.5, "loss_rows": 64.0, "loss_reduction": LossReduction.MEAN}
        assert self.run(noisy([1.5] * 120, 0.01)).codes() == []
        assert self.run(noisy([1.5] * 120, 0.01), more=rare).codes() == ["DAT004"]
        assert self.run(noisy([1.4] * 120, 0.01), more=rare).codes() == []

    def test_a_weak_relation_that_is_proved(self) -> None:
        assert self.run(noisy([CHANCE] * 120, 0.01), more={"output_agreement": 1.5}).codes() == []

    def test_a_plateau_at_the_start_is_healthy(self) -> None:
        plateau, learning = noisy([CHANCE] * 70, 0.01), noisy(np.geomspace(CHANCE, 0.5, 60), 0.01)
        assert self.run([*plateau, *learning]).codes() == []

    def test_gradients_that_agree_have_something_to_follow(self) -> None:
        assert self.run(noisy([CHANCE] * 120, 0.01), gradient_cosine=0.6).codes() == []

    def test_weights_that_have_not_gone_far_get_time(self) -> None:
        assert self.run(noisy([CHANCE] * 120, 0.01), weight_drift=0.1).codes() == []

    def test_updates_that_are_not_healthy_are_another_disease(self) -> None:
        assert self.run(noisy([CHANCE] * 120, 0.01), update_ratio=1e-7, update_norm=1e-7).codes() == []
        assert self.run(noisy([CHANCE] * 120, 0.01), update_ratio=0.9, update_norm=9.0).codes() == []

    def test_a_model_that_learns_is_silent(self) -> None:
        assert self.run(noisy(np.geomspace(CHANCE, 0.8 * CHANCE, 100), 0.01)).codes() == []


class TestUnrelatedNumbers:
    def run(self, losses: Iterable[float], prediction: float, drift: float = 0.5) -> Training:
        run = training(UnrelatedTargets())
        scalars = {
            "loss_kind": LossKind.MEAN_SQUARE, "loss_reduction": LossReduction.MEAN, "loss_factor": 1.0,
            "target_std": 2.0, "prediction_std": prediction,
        }  # fmt: skip
        for loss in losses:
            run.run(
                1, scalars=scalars | {"loss": float(loss)}, gradient_cosine=0.0, update_ratio=3e-3, weight_drift=drift
            )
        return run

    def test_an_error_that_stays_at_the_variance_of_the_targets(self) -> None:
        (finding,) = self.run(noisy([4.0] * 140, 0.1), prediction=0.3).findings()
        assert (finding.code, finding.severity) == ("DAT004", Severity.MODERATE)

    def test_a_first_error_above_it_is_forgotten_not_learnt(self) -> None:
        losses = noisy([*np.geomspace(6.0, 4.0, 20), *[4.0] * 140], 0.1)
        assert self.run(losses, prediction=0.3, drift=0.25).codes() == ["DAT004"]
        assert self.run(losses, prediction=0.3, drift=0.1).codes() == []

    def test_one_answer_for_all_is_a_plateau(self) -> None:
        assert self.run(noisy([4.0] * 140, 0.1), prediction=0.05).codes() == []

    def test_an_error_that_falls(self) -> None:
        assert self.run(noisy(np.geomspace(4.0, 2.0, 140), 0.1), prediction=0.3).codes() == []


class TestLabelNoise:
    def run(
        self,
        accuracy: float,
        rank: float,
        looks: int = 60,
        level: float = 1.5,
        factors: tuple[float, ...] = (1.0,),
        rising: float = 0.0,
        last: float = 50.0,
    ) -> list[str]:
        run = training(UnrelatedTargets())
        for look in range(looks):
            scalars = {
                "loss_kind": LossKind.CROSS_ENTROPY, "loss_classes": 10.0,
                "loss_rows": last if look % 20 == 19 else 50.0,
                "loss": 2.3 if look < 9 else level, "loss_factor": factors[look % len(factors)],
                "output_accuracy": accuracy + rising * (look - looks), "output_miss_rank": rank,
            }  # fmt: skip
            run.run(1, scalars=scalars)
        return run.codes()

    def test_samples_that_are_mixed_have_two_labels(self) -> None:
        assert self.run(0.55, 0.45, factors=(0.2, 0.7, 0.9)) == []

    def test_right_answers_before_the_loss_has_fallen(self) -> None:
        assert self.run(0.55, 0.45, level=2.2) == []

    def test_labels_that_are_missed_at_random(self) -> None:
        assert self.run(0.55, 0.45) == ["DAT004"]

    @pytest.mark.parametrize(("rising", "found"), [(0.02, []), (0.002, ["DAT004"])])
    def test_what_is_being_learnt_gets_time(self, rising: float, found: list[str]) -> None:
        assert self.run(0.68, 0.45, looks=42, rising=rising) == found

    def test_what_is_half_learnt_in_the_first_steps_gets_time(self) -> None:
        assert self.run(0.55, 0.45, looks=25) == []

    def test_labels_that_are_the_next_guess(self) -> None:
        assert self.run(0.55, 0.15) == []

    def test_who_knows_nothing_misses_at_random(self) -> None:
        assert self.run(0.2, 0.5) == []

    def test_a_few_wrong_labels_are_everywhere(self) -> None:
        assert self.run(0.95, 0.5, looks=200) == []

    def test_a_fifth_of_wrong_labels_does_no_harm(self) -> None:
        assert self.run(0.8, 0.5, looks=200) == []

    def test_the_last_batch_of_an_epoch_is_small(self) -> None:
        assert self.run(0.8, 0.5, looks=200, last=5.0) == []


class TestAgreement:
    def run(self, agreement: Iterable[float], drift: float = 0.15, pace: float = 3e-3, rows: int = 0) -> Training:
        run = training(UnrelatedTargets())
        if rows:
            table = Layer("table.weight", kind=LayerKind.EMBEDDING, shape=(rows, 8), group="table")
            run.engine.set_layers(LayerTable.of([*run.layers, table]), run.graph)
        draws = np.random.default_rng(2).normal(size=1000)
        for mean, draw in zip(agreement, draws, strict=False):
            scalars = {"loss": 1.0, "loss_kind": LossKind.ABSOLUTE, "output_agreement": mean + draw}
            run.run(1, scalars=scalars, update_ratio=pace, weight_drift=drift)
        return run

    def test_answers_that_never_fit_their_own_targets(self) -> None:
        (finding,) = self.run([0.0] * 125).findings()
        assert (finding.code, finding.severity, finding.layers) == ("DAT004", Severity.MODERATE, ())
        assert finding.detected_step == 109

    def test_what_is_the_same_for_all_samples_is_learnt_first(self) -> None:
        run = training(UnrelatedTargets())
        for step, draw in enumerate(np.random.default_rng(2).normal(size=150)):
            scalars = {"loss": 600 * 0.97**step, "loss_kind": LossKind.ABSOLUTE, "output_agreement": draw}
            run.run(1, scalars=scalars, update_ratio=3e-3, weight_drift=0.15)
        assert run.codes() == []

    def test_what_is_learnt_by_heart_later_does_not_take_it_back(self) -> None:
        (finding,) = self.run([*[0.0] * 125, *[3.0] * 40]).findings()
        assert finding.ongoing

    def test_a_little_is_a_relation(self) -> None:
        assert self.run([*[0.0] * 20, *[1.2] * 150]).codes() == []

    def test_a_weak_relation_that_is_found_late(self) -> None:
        assert self.run([*[0.0] * 66, *[1.2] * 100]).codes() == []

    def test_to_be_wrong_more_often_than_by_chance_is_a_relation(self) -> None:
        assert self.run([*[-2.0] * 80, *[0.0] * 50, *[3.0] * 40]).codes() == []

    def test_weights_that_have_not_moved_cannot_know(self) -> None:
        assert self.run([0.0] * 150, drift=0.02).codes() == []
        assert self.run([0.0] * 150, pace=1e-5).codes() == []

    def test_rows_of_a_table_learn_when_they_are_looked_up(self) -> None:
        assert self.run([0.0] * 150, rows=400).codes() == []
        assert self.run([0.0] * 150, rows=100).codes() == ["DAT004"]

    def test_a_relation_that_ends(self) -> None:
        (finding,) = self.run([*[6.0] * 60, *[0.1] * 20]).findings()
        assert finding.code == "DAT004"
        assert 60 < finding.detected_step <= 72

    def test_another_task_is_learnt_soon(self) -> None:
        assert self.run([*[6.0] * 60, *[0.5] * 6, *[3.0] * 30]).codes() == []

    def test_a_relation_that_fewer_rows_still_prove(self) -> None:
        assert self.run([*[18.0] * 60, *[1.5] * 30]).codes() == []

    def test_another_loss_is_another_task(self) -> None:
        run = self.run([6.0] * 60)
        other = {"loss": 1.0, "loss_kind": LossKind.CROSS_ENTROPY, "loss_classes": 5.0, "output_agreement": 0.1}
        assert run.run(25, scalars=other, update_ratio=3e-3, weight_drift=0.15).codes() == []


def test_a_token_of_the_text_that_is_padding() -> None:
    run = training(ZeroGradient()).run(1, padding_inside={"first": 0.1})
    assert run.codes() == []
    (finding,) = run.run(1, padding_inside={"first": 0.1}).findings()
    assert (finding.code, finding.severity, finding.layers) == ("GRD004", Severity.MODERATE, ("first",))
    assert training(ZeroGradient()).run(9, padding_inside={"first": 0.001}).codes() == []
