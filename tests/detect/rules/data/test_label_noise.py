"""DAT004 on frames made by hand: wrong labels."""

from __future__ import annotations

import pytest
from tests.detect.stacks import training

from undertow.detect.rules.data.label_noise import LabelNoise
from undertow.detect.rules.data.loss_at_chance import LossAtChance
from undertow.detect.rules.data.unrelated_targets import UnrelatedTargets
from undertow.schema import LossKind


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
        run = training(UnrelatedTargets, LossAtChance, LabelNoise)
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
