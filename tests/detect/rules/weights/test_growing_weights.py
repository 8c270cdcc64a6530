"""WGT001 on frames made by hand."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.weights.growing_weights import GrowingWeights
from undertow.detect.rules.weights.runaway_weights import RunawayWeights
from undertow.schema import Severity

USUAL = 8**0.5  # the norm of an 8 × 8 matrix of scale 1
CONDITIONS = (RunawayWeights, GrowingWeights)


class TestGrowingWeights:
    def grow(self, factor: float, steps: int, loss: float = 2.0):
        training = stack(CONDITIONS, "0:Linear", "1:Linear", "2:Linear")
        norm = USUAL
        for step in range(steps):
            norm *= factor
            training.run(
                1, scalars={"loss": loss if step > 4 else 2.0}, weight_norm={"1.weight": norm}, update_norm=0.0
            )
        return training

    def test_without_bound(self) -> None:
        (finding,) = self.grow(1.1, 60).findings()
        assert (finding.code, finding.layers, finding.severity) == ("WGT001", ("1.weight",), Severity.MODERATE)

    def test_a_model_whose_loss_falls_is_only_told(self) -> None:
        assert self.grow(1.1, 60, loss=0.5).alarms() == []

    def run_away(self, sideways: float, kind: float = 0.0):
        """All matrices grow by 3 % at every step while the loss falls."""
        training, norm = stack(CONDITIONS, "0:Linear", "1:Linear"), USUAL
        for step in range(80):
            length = norm * (0.03**2 + sideways**2) ** 0.5
            scalars = {"loss": 2.0 - step, "loss_kind": kind}
            training.run(1, scalars=scalars, weight_norm=1.03 * norm, update_norm=length, update_ratio=length / norm)
            norm *= 1.03
        return training

    def test_straight_outward_is_an_alarm_whatever_the_loss(self) -> None:
        finding = self.run_away(sideways=0.0).findings()[0]
        assert (finding.code, finding.layers, finding.severity) == ("WGT001", (), Severity.SEVERE)

    def test_growth_that_turns_as_well_is_learning(self) -> None:
        assert self.run_away(sideways=0.02).alarms() == []

    def test_an_error_below_zero_tells_that_growth_is_rewarded(self) -> None:
        (finding,) = [one for one in self.run_away(sideways=0.02, kind=1.0).findings() if one.severity.is_alarm]
        assert (finding.code, finding.first_step, finding.detected_step) == ("WGT001", 3, 5)
        assert self.run_away(sideways=0.04, kind=1.0).alarms() == []

    def test_threefold_is_healthy(self) -> None:
        assert self.grow(1.02, 55).codes() == []
