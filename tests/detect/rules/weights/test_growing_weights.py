"""WGT001 on frames made by hand."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.weights.growing_weights import GrowingWeights
from undertow.schema import Severity

USUAL = 8**0.5  # the norm of an 8 × 8 matrix of scale 1
CONDITIONS = (GrowingWeights,)


class TestGrowingWeights:
    def grow(self, factor: float, steps: int, loss: float = 2.0, **sizes: float):
        training = stack(CONDITIONS, "0:Linear", "1:Linear", "2:Linear")
        norm = USUAL
        for step in range(steps):
            norm *= factor
            scalars = {"loss": loss if step > 4 else 2.0}
            training.run(1, scalars=scalars, weight_norm={"1.weight": norm}, update_norm=0.0, **sizes)
        return training

    def test_without_bound(self) -> None:
        (finding,) = self.grow(1.1, 60).findings()
        assert (finding.code, finding.layers, finding.severity) == ("WGT001", ("1.weight",), Severity.MODERATE)

    def test_a_model_whose_loss_falls_is_only_told(self) -> None:
        assert self.grow(1.1, 60, loss=0.5).alarms() == []

    def test_threefold_is_healthy(self) -> None:
        assert self.grow(1.02, 55).codes() == []

    def test_a_few_enormous_weights_are_no_growth(self) -> None:
        assert self.grow(1.1, 60, weight_max_abs=500.0, weight_abs_p95=1.0).codes() == []
        assert self.grow(1.1, 60, weight_max_abs=2.0, weight_abs_p95=1.0).codes() == ["WGT001"]

    def test_growth_that_the_loss_rewards(self) -> None:
        assert self.grow(1.1, 60, loss=-500.0).alarms() == ["WGT001"]
        assert self.grow(1.1, 60, loss=-3.0).alarms() == []
