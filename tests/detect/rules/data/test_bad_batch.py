"""DAT002 on frames made by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from tests.detect.building import Training
from tests.detect.stacks import noisy, training

from undertow.detect.rules.data.bad_batch import BadBatch
from undertow.schema import LossKind


class TestBadBatch:
    def run(self, losses: Iterable[float], **odd: float) -> Training:
        """Sixty usual batches, then one with a leap of the loss, then usual ones."""
        run = training(BadBatch)
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
            run = training(BadBatch)
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
        assert self.run(noisy([0.3] * 100), input_std=50.0).codes() == []

    def test_inputs_out_of_any_range_are_told_although_a_normalisation_hides_them(self) -> None:
        (finding,) = self.run(noisy([0.3] * 100), input_std=1e4).findings()
        assert (finding.first_step, finding.severity.is_alarm, finding.ongoing) == (60, True, False)

    def test_harder_data_of_twice_the_spread_are_silent(self) -> None:
        losses = [*noisy(np.geomspace(2.3, 0.3, 60)), *noisy(np.geomspace(5, 1, 40))]
        assert self.run(losses, input_std=2.5, input_max_abs=8.0).codes() == []

    def test_a_long_row_of_bad_batches_is_told_when_the_loss_falls_as_suddenly(self) -> None:
        """What is learnt little by little was no bad batch."""
        for after, found in (([0.9] * 20, ["DAT002"]), (np.geomspace(2.0, 0.5, 40), [])):
            run = training(BadBatch)
            for loss in [*noisy(np.geomspace(2.3, 0.5, 60)), 4.0, *noisy([2.4] * 40), *noisy(after)]:
                kind = {"loss_kind": LossKind.CROSS_ENTROPY, "loss_classes": 10.0}
                run.run(1, scalars={"loss": loss, **kind}, update_ratio=0.01, update_norm=0.1)
            alarms = [finding for finding in run.findings() if finding.severity.is_alarm]
            assert [(finding.code, finding.first_step, finding.detected_step) for finding in alarms] == [
                (code, 60, 101) for code in found
            ]
