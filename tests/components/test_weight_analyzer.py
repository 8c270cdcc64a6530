"""The weight analyzer on plain arrays: golden values, and everything the original got wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from undertow import WeightAnalyzer
from undertow.schema import InputError, WeightStatistics

SPREAD = [0.5, -0.5, 0.25, -0.25, 0, 0, 1, -1]
SPIKE = [0.01] * 39 + [20.0]


def test_golden_symmetric() -> None:
    result = WeightAnalyzer.analyze_weight_distribution([SPREAD])
    (layer,) = result.layer_analyses
    assert layer.statistics.mean == pytest.approx(0)
    assert layer.statistics.std_dev == pytest.approx(0.572822, abs=1e-6)
    assert layer.statistics.kurtosis == pytest.approx(-0.52381, abs=1e-5)
    assert layer.statistics.zero_fraction == 0.25
    assert (layer.health_score, layer.issues, layer.recommendations) == (100, [], [])


def test_golden_spike() -> None:
    result = WeightAnalyzer.analyze_weight_distribution([torch.tensor(SPIKE, dtype=torch.float64)])
    (layer,) = result.layer_analyses
    assert layer.statistics.mean == pytest.approx(0.50975)
    assert layer.statistics.std_dev == pytest.approx(3.12094, abs=1e-5)
    assert layer.statistics.skewness == pytest.approx(6.08487, abs=1e-5)
    assert layer.statistics.kurtosis == pytest.approx(35.0256, abs=1e-4)
    assert layer.health_score == 50
    assert layer.kinds_of_issue == ["skewed", "heavy-tailed", "extreme"]
    assert len(layer.issues) == len(layer.recommendations) == 3
    (outlier,) = result.outlier_detection
    assert (outlier.weight_index, outlier.value, outlier.severity) == (39, 20.0, "High")
    assert outlier.z_score == pytest.approx(6.245, abs=1e-3)
    assert result.distribution_health is not None
    assert (result.distribution_health.score, result.distribution_health.status) == (50, "Poor")
    assert result.overall_statistics.min == 0.01


def test_entropy_is_that_of_a_histogram() -> None:
    uniform = np.repeat(np.arange(64), 10) * 1e-9
    entropy = WeightAnalyzer.analyze_weight_distribution([uniform]).layer_analyses[0].statistics.entropy
    assert entropy == pytest.approx(6)
    assert WeightAnalyzer.analyze_weight_distribution([[3.0] * 9]).layer_analyses[0].statistics.entropy == 0


def test_overall_is_pooled_by_number() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(3, 2, 1000), rng.exponential(1, 10) + 5, rng.normal(7, 0.1, 300)]
    overall = WeightAnalyzer.analyze_weight_distribution(parts).overall_statistics
    every = np.concatenate(parts)
    assert overall.count == every.size
    assert overall.mean == pytest.approx(every.mean())
    assert overall.std_dev == pytest.approx(every.std())
    assert overall.skewness == pytest.approx(stats.skew(every))
    assert overall.kurtosis == pytest.approx(stats.kurtosis(every))
    assert (overall.min, overall.max) == (every.min(), every.max())
    counts = np.histogram(every, 64)[0]
    assert overall.entropy == pytest.approx(stats.entropy(counts, base=2), abs=1e-3)


def test_accumulate_pools_in_place() -> None:
    first = WeightStatistics(mean=1.0, std_dev=1.0, min=0.0, max=2.0, count=2)
    first.accumulate(WeightStatistics(mean=4.0, min=4.0, max=4.0, count=1))
    first.finalize(2)
    assert first.mean == 2
    assert first.std_dev == pytest.approx(np.std([0, 2, 4]))
    assert (first.min, first.max, first.count) == (0, 4, 3)


def test_kinds_are_pooled_apart() -> None:
    arrays = {"fc.weight": [1.0, 2.0], "fc.bias": [0.0], "ln_1.weight": [1.0, 1.0], "out.weight": [3.0]}
    kinds = WeightAnalyzer.analyze_weight_distribution(arrays).statistics_by_kind
    assert {kind: part.count for kind, part in kinds.items()} == {"bias": 1, "norm": 2, "weight": 3}
    assert kinds["weight"].mean == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_weights_are_critical(bad: float) -> None:
    result = WeightAnalyzer.analyze_weight_distribution([[1.0, bad, 3.0], SPREAD], names=["ill", "well"])
    ill, well = result.layer_analyses
    assert (ill.statistics.mean, ill.statistics.nonfinite_count, ill.health_score) == (2, 1, 0)
    assert ill.kinds_of_issue == ["non-finite"]
    assert len(ill.recommendations) == 1
    assert well.health_score == 100
    assert result.distribution_health is not None
    assert result.distribution_health.status == "Critical"
    only = WeightAnalyzer.analyze_weight_distribution([[bad]])
    assert only.layer_analyses[0].health_score == 0


def test_distribution_statuses() -> None:
    def status(values: list[float]) -> str:
        health = WeightAnalyzer.analyze_weight_distribution([values]).distribution_health
        assert health is not None
        return health.status

    assert status(SPREAD) == "Excellent"
    assert status([6.0, -6.0, 3.0, -3.0]) == "Good"
    assert status([0.0] * 5 + [1.0, 1.1, 0.9, 1.0, 6.0]) == "Poor"
    assert status([0.0] * 50 + [1.0] * 30 + [-1.0] * 2) == "Good"
    assert status([0.0] * 8 + [1.0, 2.0]) == "Fair"
    assert status([0.0] * 39 + [20.0]) == "Critical"


def test_outliers_are_counted_against_chance() -> None:
    values = np.random.default_rng(1).normal(size=100_000)
    (count,) = WeightAnalyzer.analyze_weight_distribution([values]).outlier_counts
    assert count.expected_count == pytest.approx(270, abs=0.1)
    assert abs(count.count - count.expected_count) < 5 * math.sqrt(count.expected_count)
    assert count.listed == 100
    assert WeightAnalyzer.analyze_weight_distribution([[1e-30, 2e-30, 3e-30]]).outlier_detection == []


def test_empty_input() -> None:
    nothing = WeightAnalyzer.analyze_weight_distribution([])
    assert (nothing.layer_analyses, nothing.distribution_health) == ([], None)
    report = WeightAnalyzer.analyze_weight_distribution([[]])
    (empty,) = report.layer_analyses
    assert (empty.health_score, empty.statistics.mean, report.distribution_health) == (None, None, None)
    assert empty.statistics.unavailable["mean"] == empty.unavailable["health_score"] == "the tensor has no elements"


def test_a_tensor_of_nan_has_no_mean() -> None:
    report = WeightAnalyzer.analyze_weight_distribution([[math.nan, math.inf]])
    statistics = report.layer_analyses[0].statistics
    assert (statistics.mean, statistics.min, statistics.nonfinite_count) == (None, None, 2)
    assert statistics.unavailable["mean"] == "no element is finite"
    assert report.overall_statistics.mean is None
    assert report.distribution_health is not None
    assert report.distribution_health.status == "Critical"


def test_norm_of_many_and_of_extreme_values() -> None:
    assert WeightAnalyzer.compute_l2_norm(np.full(2_000_000, 0.1, np.float32)) == pytest.approx(141.4214, abs=1e-3)
    assert WeightAnalyzer.compute_l2_norm([3e-200, 4e-200]) == pytest.approx(5e-200)
    assert WeightAnalyzer.compute_l2_norm([3e200, 4e200]) == pytest.approx(5e200)
    assert WeightAnalyzer.compute_l2_norm([]) == 0
    assert WeightAnalyzer.compute_l2_norm([[3.0], [4.0]]) == 5


def test_explosion_does_not_depend_on_order() -> None:
    small, large = [[1.0]] * 59, [[1000.0]]
    for arrays in (large + small, small + large):
        result = WeightAnalyzer.detect_gradient_explosion(arrays, 5.0)
        (layer,) = result.exploding_layers
        assert (layer.severity, result.overall_severity) == ("Critical", "Critical")
        assert result.explosion_ratio == pytest.approx(1 / 60)
        assert result.max_gradient_norm == 1000


@pytest.mark.parametrize(("norm", "severity"), [(8, "Low"), (20, "Medium"), (40, "High"), (200, "Critical")])
def test_explosion_severity_of_a_layer(norm: float, severity: str) -> None:
    result = WeightAnalyzer.detect_gradient_explosion([[1.0], [1.0], [norm]], 5.0, names=["a", "b", "c"])
    (layer,) = result.exploding_layers
    assert (layer.layer_name, layer.layer_index, layer.severity) == ("c", 2, severity)


@pytest.mark.parametrize(
    ("norms", "severity"),
    [([1] * 9 + [4], "Low"), ([1] * 9 + [11], "Medium"), ([1] * 9 + [26], "High"), ([1] * 9 + [51], "Critical"),
     ([6, 6, 1, 1, 1], "High"), ([6, 6, 6, 1], "Critical")],
)  # fmt: skip
def test_overall_explosion_severity(norms: list[float], severity: str) -> None:
    result = WeightAnalyzer.detect_gradient_explosion([[norm] for norm in norms], 5)
    assert result.overall_severity == severity


def test_explosion_of_nonfinite_and_of_nothing() -> None:
    result = WeightAnalyzer.detect_gradient_explosion({"a": [1.0], "b": [math.nan], "c": torch.tensor([math.inf])}, 5)
    assert [layer.layer_name for layer in result.exploding_layers] == ["b", "c"]
    assert {layer.severity for layer in result.exploding_layers} == {"Critical"}
    assert (result.overall_severity, result.mean_gradient_norm, result.nonfinite_layers) == ("Critical", 1, [1, 2])
    empty = WeightAnalyzer.detect_gradient_explosion([], 5)
    assert (empty.mean_gradient_norm, empty.explosion_ratio, empty.overall_severity) == (None, None, "Low")


@pytest.mark.parametrize(("step", "severity"), [(0.05, "Minimal"), (0.5, "Low"), (2.0, "Medium"), (20.0, "High")])
def test_drift_severity(step: float, severity: str) -> None:
    before = {"a": np.ones(10), "b": np.ones(5)}
    after = {name: value * (1 + step) for name, value in before.items()}
    drift = WeightAnalyzer.analyze_weight_drift(before, after)
    assert drift.mean_drift == pytest.approx(step)
    assert drift.max_drift == pytest.approx(step)
    assert (drift.severity, drift.affected_layers) == (severity, [])
    assert drift.cosines == pytest.approx([1, 1])


def test_drift_names_what_moved_most() -> None:
    before = [np.ones(100), np.ones(100), np.zeros(2), [math.nan]]
    after = [np.ones(100), -np.ones(100), np.ones(2), [1.0]]
    drift = WeightAnalyzer.analyze_weight_drift(before, after, names=["still", "turned", "born", "lost"])
    assert drift.layer_drifts == [0, 2, None, None]
    assert drift.cosines == [pytest.approx(1), pytest.approx(-1), None, None]
    assert drift.unavailable["born"] == "the weights were all zero before"
    assert drift.unavailable["lost"] == drift.unavailable["cosines"] == "not all weights are finite"
    with pytest.raises(InputError, match="'a'"):
        WeightAnalyzer.analyze_weight_drift({"a": [1.0]}, {"a": [1.0, 2.0]})


def test_health_of_one_tensor() -> None:
    health = WeightAnalyzer.assess_weight_health(SPIKE)
    assert (health.score, len(health.issues), len(health.recommendations)) == (50, 3, 3)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="2 tensors but 1 names"):
        WeightAnalyzer.analyze_weight_distribution([[1.0], [2.0]], names=["a"])
    with pytest.raises(InputError, match="'a' is given twice"):
        WeightAnalyzer.analyze_weight_distribution([[1.0], [2.0]], names=["a", "a"])
    with pytest.raises(InputError, match="conv"):
        WeightAnalyzer.detect_gradient_explosion({"conv": ["x"]}, 5)
    with pytest.raises(InputError, match="threshold"):
        WeightAnalyzer.detect_gradient_explosion([[1.0]], 0)
