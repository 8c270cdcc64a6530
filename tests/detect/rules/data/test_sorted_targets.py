"""DAT005 on frames made by hand: regression targets in order."""

from __future__ import annotations

from collections.abc import Iterable

from numpy.random import default_rng
from tests.detect.building import Training
from tests.detect.stacks import training

from undertow.detect.rules.data.sorted_targets import SortedTargets
from undertow.schema import LossKind, Severity


class TestSortedTargets:
    def numbers(self, means: Iterable[float], deviation: float) -> Training:
        run = training(SortedTargets)
        for mean in means:
            kind = {"loss_kind": LossKind.MEAN_SQUARE, "loss_rows": 64.0, "loss": 1.0}
            run.run(1, scalars={**kind, "target_mean": mean, "target_std": deviation})
        return run

    def test_numbers_that_come_sorted(self) -> None:
        (finding,) = self.numbers((2.5 - 0.1 * step for step in range(12)), 0.05).findings()
        assert (finding.code, finding.severity, finding.detected_step) == ("DAT005", Severity.SEVERE, 7)

    def test_numbers_that_are_mixed(self) -> None:
        generator = default_rng(0)
        assert self.numbers((float(generator.normal(3, 0.125)) for _ in range(40)), 1.0).codes() == []

    def test_a_rare_reward_moves_the_mean_of_its_batch(self) -> None:
        run = training(SortedTargets)
        for step in range(30):
            kind = {"loss_kind": LossKind.MEAN_SQUARE, "loss_rows": 64.0, "loss": 1.0}
            mean, deviation = (1.0, 1.5) if step % 4 == 3 else (0.0, 0.02)
            run.run(1, scalars={**kind, "target_mean": mean, "target_std": deviation})
        assert run.codes() == []

    def test_targets_that_a_learner_moves_itself(self) -> None:
        assert self.numbers((-0.02 * step for step in range(400)), 0.3).codes() == []
        assert self.numbers((0.0 if step < 10 else -1.0 for step in range(30)), 0.05).codes() == []

    def test_batches_that_differ_without_an_order_are_episodes(self) -> None:
        means = [1.0, 8.0, 3.0, 6.0, 2.0, 7.0, 1.5, 5.0, 8.0, 2.5, 6.5, 1.0, 4.0, 7.5, 2.0, 6.0]
        assert self.numbers(means, 0.3).codes() == []
        assert self.numbers(sorted(means), 0.3).codes() == ["DAT005"]
