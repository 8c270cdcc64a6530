"""DAT005 on frames made by hand: batches of few classes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.random import default_rng
from tests.detect.building import Training
from tests.detect.stacks import training

from undertow.detect.rules.data.sorted_classes import SortedClasses
from undertow.schema import Severity


class TestSortedClasses:
    def run(self, labels: Iterable[Iterable[int]], classes: int = 10) -> Training:
        run, pooled = training(SortedClasses), np.zeros(classes)
        for batch in labels:
            counts = np.bincount(list(batch), minlength=classes)
            pooled += counts
            scalars = {
                "label_entropy": entropy(counts),
                "label_entropy_pooled": entropy(pooled),
                "loss_rows": counts.sum(),
            }
            run.run(1, scalars={name: float(value) for name, value in scalars.items()})
        return run

    def test_sorted_by_class(self) -> None:
        run = self.run([[label // 3] * 32 for label in range(30)])
        (finding,) = run.findings()
        assert (finding.code, finding.severity) == ("DAT005", Severity.SEVERE)
        assert finding.detected_step <= 12

    def test_small_mixed_batches_of_many_classes_are_silent(self) -> None:
        generator = default_rng(0)
        assert self.run((generator.integers(1000, size=8) for _ in range(100)), 1000).codes() == []
        assert self.run(generator.integers(10, size=16) for _ in range(100)).codes() == []

    def test_a_rare_class_is_silent(self) -> None:
        generator = default_rng(0)
        assert self.run((generator.random(32) < 0.05).astype(int) for _ in range(200)).codes() == []

    def test_one_class_only_is_no_sorting(self) -> None:
        assert self.run([[3] * 32] * 50).codes() == []

    def test_it_ends_when_batches_are_mixed(self) -> None:
        generator = default_rng(0)
        mixed = [generator.integers(10, size=32) for _ in range(200)]
        run = self.run([*([label // 3] * 32 for label in range(30)), *mixed])
        assert not run.findings()[0].ongoing


def entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())
