"""DAT004 on frames made by hand: predictions beside their own targets."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from tests.detect.building import Training
from tests.detect.stacks import training

from undertow.detect.rules.data.label_noise import LabelNoise
from undertow.detect.rules.data.loss_at_chance import LossAtChance
from undertow.detect.rules.data.unrelated_targets import UnrelatedTargets
from undertow.schema import Layer, LayerKind, LayerTable, LossKind, Severity


class TestAgreement:
    def run(self, agreement: Iterable[float], drift: float = 0.15, pace: float = 3e-3, rows: int = 0) -> Training:
        run = training(UnrelatedTargets, LossAtChance, LabelNoise)
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
        run = training(UnrelatedTargets, LossAtChance, LabelNoise)
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

    def test_another_task_is_learnt_soon(self) -> None:
        assert self.run([*[6.0] * 60, *[0.5] * 6, *[3.0] * 30]).codes() == []

    def test_a_relation_that_fewer_rows_still_prove(self) -> None:
        assert self.run([*[18.0] * 60, *[1.5] * 30]).codes() == []

    def test_another_loss_is_another_task(self) -> None:
        run = self.run([6.0] * 60)
        other = {"loss": 1.0, "loss_kind": LossKind.CROSS_ENTROPY, "loss_classes": 5.0, "output_agreement": 0.1}
        assert run.run(25, scalars=other, update_ratio=3e-3, weight_drift=0.15).codes() == []
