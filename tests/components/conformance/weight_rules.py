"""The weight analyzer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.components.conformance import original
from tests.components.conformance.rules import rule

from undertow import WeightAnalyzer
from undertow.components.explosion import ACTIONS
from undertow.schema import InputError, WeightStatistics

FIRST, HEAVY = [0.5, -0.5, 0.25, -0.25, 0, 0, 1, -1], [0.01] * 39 + [20.0]


def distribution(*tensors: Any) -> Any:
    return WeightAnalyzer.analyze_weight_distribution(list(tensors))


def layer(tensor: Any) -> Any:
    return distribution(tensor).layer_analyses[0]


def explosion(norms: list[float], threshold: float = 5.0) -> Any:
    return WeightAnalyzer.detect_gradient_explosion([[norm] for norm in norms], threshold)


def random_tensors() -> list[list[float]]:
    chance = np.random.default_rng(3)
    return [list(chance.standard_t(3, int(chance.integers(4, 60))) * 10 ** chance.uniform(-1, 1.2)) for _ in range(100)]


@rule("weights", "a layer is listed when its norm is above the threshold")
def _() -> None:
    assert [one.layer_index for one in explosion([1, 6, 5, 7]).exploding_layers] == [1, 3]
    assert [one.gradient_norm for one in explosion([1, 6]).exploding_layers] == [6]


@rule("weights", "severity: ratio to the mean of the norms seen so far", "explosion-severity")
def _() -> None:
    for norms in ([1000.0] + [1.0] * 59, [1.0] * 59 + [1000.0]):
        assert [one.severity for one in explosion(norms).exploding_layers] == ["Critical"]
    assert [one.severity for one in explosion([1, 1, 8]).exploding_layers] == ["Low"]


@rule("weights", "action by the absolute norm: 100, 10, 5", "explosion-actions")
def _() -> None:
    for one in explosion([1, 1, 8, 20, 40, 900]).exploding_layers:
        assert one.recommended_action.endswith(ACTIONS[one.severity])


@rule("weights", "max, mean and population std of the norms, and the share listed")
def _() -> None:
    found = explosion([1, 6, 5, 7])
    assert (found.max_gradient_norm, found.mean_gradient_norm, found.explosion_ratio) == (7, 4.75, 0.5)
    assert found.std_gradient_norm == pytest.approx(original.std([1, 6, 5, 7]))


@rule(
    "weights",
    "overall severity: share above 0.5, 0.3, 0.1 or largest above 10, 5, 2 times the threshold",
    "explosion-severity",
)
def _() -> None:
    assert [
        explosion(norms).overall_severity for norms in ([1] * 9 + [4], [1] * 9 + [11], [1] * 9 + [26], [1] * 9 + [51])
    ] == ["Low", "Medium", "High", "Critical"]
    assert [explosion(norms).overall_severity for norms in ([6, 6, 1, 1, 1], [6, 6, 6, 1])] == ["High", "Critical"]


@rule("weights", "recommendations: two for many layers, two for norms above 100, two always", "explosion-mitigation")
def _() -> None:
    assert len(explosion([1]).mitigation_recommendations) == 2
    assert len(explosion([1] * 9 + [51]).mitigation_recommendations) == 7


@rule("weights", "a threshold of 0 or below is taken", "threshold-range")
def _() -> None:
    with pytest.raises(InputError, match="threshold is 0"):
        explosion([1.0], 0)


@rule("weights", "explosion of an empty list: NaN, overall Low", "empty-tensors")
def _() -> None:
    found = WeightAnalyzer.detect_gradient_explosion([], 5.0)
    assert (found.mean_gradient_norm, found.explosion_ratio, found.overall_severity) == (None, None, "Low")


@rule("weights", "a gradient of NaN is not listed, overall Low", "nonfinite")
def _() -> None:
    found = explosion([1.0, math.nan])
    assert ([one.layer_index for one in found.exploding_layers], found.overall_severity) == ([1], "Critical")


@rule("weights", "mean and population std, in float32 sums", "float64")
def _() -> None:
    for tensor in random_tensors():
        found = layer(tensor).statistics
        assert (found.mean, found.std_dev) == (
            pytest.approx(original.mean(tensor)),
            pytest.approx(original.std(tensor)),
        )


@rule("weights", "skewness and excess kurtosis, 0 below 3 and 4 elements")
def _() -> None:
    for tensor in random_tensors():
        found = layer(tensor).statistics
        assert (found.skewness, found.kurtosis) == (
            pytest.approx(original.moment(tensor, 3)),
            pytest.approx(original.moment(tensor, 4)),
        )
    assert (layer([1.0, 5.0]).statistics.skewness, layer([1.0, 5.0, 9.0]).statistics.kurtosis) == (0, 0)


@rule("weights", "min, max, and the share that is exactly zero, −0 among it")
def _() -> None:
    found = layer([0.0, -0.0, 2.0, -3.0]).statistics
    assert (found.min, found.max, found.zero_fraction) == (-3, 2, 0.5)


@rule("weights", "entropy: max(0, log2 std)", "entropy")
def _() -> None:
    assert layer(np.arange(64.0)).statistics.entropy == pytest.approx(6)
    assert layer([1.0, 1.0]).statistics.entropy == 0


@rule("weights", "statistics of an empty tensor are all zero", "empty-tensors")
def _() -> None:
    assert layer([]).statistics.mean is None


@rule("weights", "min and max ignore NaN", "nonfinite")
def _() -> None:
    assert (layer([math.nan, 2.0]).statistics.min, layer([math.nan]).statistics.min) == (2.0, None)


@rule("weights", "accumulate sums, finalize divides by the number of tensors", "pooled-statistics")
def _() -> None:
    total = WeightStatistics()
    for tensor in (FIRST, HEAVY):
        total.accumulate(layer(tensor).statistics)
    total.finalize(2)
    assert total.mean == pytest.approx(np.mean(FIRST + HEAVY))
    assert total.std_dev == pytest.approx(np.std(FIRST + HEAVY))


@rule("weights", "the overall minimum and maximum start from 0", "pooled-statistics")
def _() -> None:
    assert distribution(HEAVY).overall_statistics.min == 0.01


@rule("weights", "layer score: 100 − 20 − 30 − 15 − 15")
def _() -> None:
    for tensor in [*random_tensors(), FIRST, HEAVY, [0.0] * 9 + [20.0]]:
        assert layer(tensor).health_score == original.score(tensor)


@rule("weights", "distribution score: 100 − 25 − 15 − 15 − 20, and its five steps")
def _() -> None:
    assert (distribution(HEAVY).distribution_health.score, distribution(HEAVY).distribution_health.status) == (
        50,
        "Poor",
    )
    assert distribution(FIRST).distribution_health.status == "Excellent"


@rule("weights", "outliers: |x − mean| / std above 3, above 5 High")
def _() -> None:
    (one,) = distribution(HEAVY).outlier_detection
    assert (one.layer_index, one.weight_index, one.value, one.severity) == (0, 39, 20.0, "High")
    assert one.z_score == pytest.approx(6.245, abs=1e-3)


@rule("weights", "every outlier is a record", "outliers-listed")
def _() -> None:
    found = distribution(np.random.default_rng(0).normal(size=100_000))
    assert (len(found.outlier_detection), found.outlier_counts[0].listed) == (100, 100)


@rule("weights", "an underflowed variance makes outliers of [1e-30, 2e-30, 3e-30]", "float64")
def _() -> None:
    assert distribution([1e-30, 2e-30, 3e-30]).outlier_detection == []


@rule("weights", "issues, in this order: zeros, skewed, heavy-tailed, extreme")
def _() -> None:
    assert [str(kind) for kind in layer([0.0] * 39 + [20.0]).kinds_of_issue] == [
        "zeros",
        "skewed",
        "heavy-tailed",
        "extreme",
    ]


@rule("weights", "the sentences of issues and recommendations", "weight-sentences")
def _() -> None:
    assert [text.split(":")[0] for text in layer(HEAVY).issues] == [
        "Skewed weights",
        "Heavy-tailed weights",
        "Extreme weights",
    ]


@rule("weights", "two of four recommendations never fire", "weight-sentences")
def _() -> None:
    assert len(layer(HEAVY).recommendations) == 3


@rule("weights", "a tensor with NaN scores 100, Excellent", "nonfinite")
def _() -> None:
    found = distribution([1.0, math.nan])
    assert (found.layer_analyses[0].health_score, found.distribution_health.status) == (0, "Critical")


@rule("weights", "an empty tensor scores 100, Excellent", "empty-tensors")
def _() -> None:
    assert (layer([]).health_score, distribution([]).distribution_health) == (None, None)


@rule("weights", "compute_l2_norm, in float32", "float64")
def _() -> None:
    assert WeightAnalyzer.compute_l2_norm([3.0, 4.0]) == 5
    assert WeightAnalyzer.compute_l2_norm([3e200, 4e200]) == pytest.approx(5e200)


@rule("weights", "WeightHealth is never produced", "weight-health")
def _() -> None:
    health = WeightAnalyzer.assess_weight_health(HEAVY)
    assert (health.score, len(health.issues), len(health.recommendations)) == (50, 3, 3)


@rule("weights", "WeightDriftAnalysis is never produced", "weight-drift")
def _() -> None:
    drift = WeightAnalyzer.analyze_weight_drift([[1.0, 1.0]], [[1.5, 1.5]])
    assert (drift.mean_drift, drift.max_drift, drift.severity) == (pytest.approx(0.5), pytest.approx(0.5), "Low")


@rule("weights", "golden: mean 0, std .572822, kurtosis −.52381, a quarter zeros, score 100")
def _() -> None:
    found = layer(FIRST)
    assert (found.statistics.mean, found.statistics.zero_fraction, found.health_score) == (0, 0.25, 100)
    assert (found.statistics.std_dev, found.statistics.kurtosis) == (
        pytest.approx(0.572822, abs=1e-6),
        pytest.approx(-0.52381, abs=1e-5),
    )


@rule("weights", "golden: mean .50975, std 3.12094, skewness 6.08487, kurtosis 35.0256, score 50")
def _() -> None:
    found = layer(HEAVY)
    assert (found.statistics.mean, found.statistics.std_dev) == (
        pytest.approx(0.50975),
        pytest.approx(3.12094, abs=1e-5),
    )
    assert (found.statistics.skewness, found.statistics.kurtosis) == (
        pytest.approx(6.08487, abs=1e-5),
        pytest.approx(35.0256, abs=1e-4),
    )
    assert (found.health_score, len(found.issues)) == (50, 3)
