"""WGT004 on frames made by hand."""

from __future__ import annotations

from tests.detect.stacks import stack

from undertow.detect.rules.weights.weight_outliers import WeightOutliers

USUAL = 8**0.5  # the norm of an 8 × 8 matrix of scale 1


class TestWeightOutliers:
    def test_one_enormous_weight(self) -> None:
        training = stack(WeightOutliers, "0:Linear", "1:Linear").run(3, weight_max_abs=0.3, weight_abs_p95=0.125)
        training.run(2, weight_max_abs={"1.weight": 1e4, "1.bias": 1e4}, weight_abs_p95=0.125)
        (finding,) = training.findings()
        assert (finding.code, finding.layers, finding.first_step) == ("WGT004", ("1.weight",), 3)
        assert not training.run(1, weight_max_abs=0.3, weight_abs_p95=0.125).findings()[0].ongoing

    def test_an_identity_has_a_large_weight_in_every_row(self) -> None:
        training = stack(WeightOutliers, "0:Linear")
        training.run(5, weight_max_abs=1.0, weight_abs_p95=1e-3, weight_norm=8**0.5)
        assert training.codes() == []
        assert training.run(5, weight_max_abs=1.0, weight_abs_p95=1e-3, weight_norm=1.01).codes() == ["WGT004"]

    def test_pruned_matrices_are_not_judged(self) -> None:
        training = stack(WeightOutliers, "0:Linear").run(5, weight_max_abs=0.3, weight_abs_p95=0.0)
        assert training.codes() == []
