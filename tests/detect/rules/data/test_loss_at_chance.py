"""DAT004 on frames made by hand: a loss at chance level."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from tests.detect.building import Training
from tests.detect.stacks import noisy, training

from undertow.detect.rules.data.label_noise import LabelNoise
from undertow.detect.rules.data.loss_at_chance import LossAtChance
from undertow.detect.rules.data.unrelated_targets import UnrelatedTargets
from undertow.schema import LossKind, LossReduction, Severity

CHANCE = math.log(10)


class TestClasses:
    def run(self, losses: Iterable[float], more: dict[str, Any] | None = None, **changes: Any) -> Training:
        run = training(UnrelatedTargets, LossAtChance, LabelNoise)
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

    def test_answers_that_are_right_speak_against_it(self) -> None:
        """The loss has several terms, and only their sum is at the level of a guess."""
        for accuracy, found in ((0.45, []), (0.12, ["DAT004"])):
            more: dict[str, Any] = {"output_accuracy": accuracy, "label_entropy_pooled": 2.29}
            assert self.run(noisy([CHANCE] * 120, 0.01), more=more).codes() == found

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


class TestNumbers:
    def run(self, losses: Iterable[float], prediction: float, drift: float = 0.5) -> Training:
        run = training(UnrelatedTargets, LossAtChance, LabelNoise)
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
