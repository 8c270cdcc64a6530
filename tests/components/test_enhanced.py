"""The enhanced analyzer: golden values that hold, the right ones for those that do not, and every state."""

from __future__ import annotations

import math

import numpy as np
import pytest

from undertow import EnhancedGradientAnalyzer, GradientHistory
from undertow.schema import InputError

GOLDEN = {"a": [1, 2, 4, 3, 5], "b": [0.5, 0.4, 0.3, 0.35, 0.2], "c": [0, 0, 0, 0, 0]}


def analyze(series: object, **extras: object):
    return EnhancedGradientAnalyzer().analyze_gradients(series, **extras)  # pyright: ignore[reportArgumentType]


def noise(count: int, seed: int = 0, spread: float = 0.1) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, spread, count))


@pytest.mark.parametrize(
    ("layer", "mean", "std", "median", "kurtosis", "smooth", "trend", "turns"),
    [
        ("a", 3, 1.414214, 3, -1.3, 0.3, 0.9, 0.4),
        ("b", 0.35, 0.1, 0.35, -0.95, 0.895522, 0.065, 0.4),
        ("c", 0, 0, 0, 0, 1, 0, 0),
    ],
)
def test_golden_layers(
    layer: str, mean: float, std: float, median: float, kurtosis: float, smooth: float, trend: float, turns: float
) -> None:
    details = analyze(GOLDEN).layer_details[layer]
    statistics, character = details.gradient_statistics, details.flow_characteristics
    assert statistics.mean == pytest.approx(mean)
    assert statistics.std == pytest.approx(std, abs=1e-6)
    assert statistics.variance == pytest.approx(std**2, abs=1e-5)
    assert statistics.median == pytest.approx(median)
    assert statistics.skewness == pytest.approx(0, abs=1e-12)
    assert statistics.kurtosis == pytest.approx(kurtosis)
    assert statistics.samples == 5
    assert character.smoothness_index == pytest.approx(smooth, abs=1e-6)
    assert character.trend_strength == pytest.approx(trend)
    assert character.oscillation_frequency == pytest.approx(turns)
    assert character.is_oscillating is False


def test_golden_network() -> None:
    network = analyze(GOLDEN).network_level_analysis
    distribution = network.gradient_distribution
    assert distribution.mean_gradient_norm == pytest.approx(1.116667, abs=1e-6)
    assert distribution.gradient_variance == pytest.approx(1.793889, abs=1e-6)
    assert distribution.gradient_skewness == pytest.approx(0.671064, abs=1e-6)
    assert distribution.gradient_kurtosis == pytest.approx(-1.5)
    assert distribution.distribution_type is None
    assert "8 layers" in distribution.unavailable["distribution_type"]
    assert distribution.layer_gradient_ratios["a"] == pytest.approx(3 / 1.116667, abs=1e-5)
    assert network.overall_gradient_health == "Critical"


def test_a_dead_layer_is_critical_not_unstable() -> None:
    analysis = analyze(GOLDEN)
    dead = analysis.layer_details["c"]
    assert dead.health_metrics.overall_health == "Critical"
    assert dead.health_metrics.risk_factors == ["dead: no gradient arrives"]
    assert dead.health_metrics.gradient_stability is None
    assert dead.flow_characteristics.unavailable["stability_measure"] == "every sample is zero"
    assert [priority.target_name for priority in analysis.optimization_priorities] == ["c", "a", "b"]
    assert analysis.optimization_priorities[0].urgency_level == "Critical"


def test_comparison_looks_both_ways() -> None:
    compared = {name: details.comparative_analysis for name, details in analyze(GOLDEN).layer_details.items()}
    assert compared["a"].relative_performance == pytest.approx(17.142857, abs=1e-6)
    assert compared["b"].relative_performance == pytest.approx(0.233333, abs=1e-6)
    assert compared["c"].relative_performance == 0
    assert compared["a"].performance_gap == pytest.approx(3 - 0.175)
    layers = {"huge": [1e6] * 5, "x": [1.0] * 5, "y": [1.1] * 5, "z": [0.9] * 5}
    compared = {name: details.comparative_analysis for name, details in analyze(layers).layer_details.items()}
    assert compared["huge"].rank_among_layers == 4
    assert compared["huge"].optimization_potential == pytest.approx(1, abs=1e-5)
    assert compared["x"].similar_layers == ["y", "z"]
    alone = analyze({"a": [1.0] * 5}).layer_details["a"].comparative_analysis
    assert (alone.relative_performance, alone.rank_among_layers, alone.optimization_potential) == (None, 1, None)


def test_percentiles_interpolate() -> None:
    statistics = analyze({"a": list(range(1, 21))}).layer_details["a"].gradient_statistics
    assert statistics.percentile_95 == pytest.approx(np.percentile(np.arange(1, 21), 95))
    assert statistics.percentile_5 == pytest.approx(np.percentile(np.arange(1, 21), 5))


def test_a_steady_trend_is_stable() -> None:
    ramp = np.linspace(1, 300, 300)
    decay = np.exp(-np.arange(300) / 100)
    for series in (ramp, decay):
        metrics = analyze({"a": series}).layer_details["a"].health_metrics
        assert metrics.gradient_stability == pytest.approx(1, abs=1e-6)


def test_convergence_is_chronological_and_absent_when_short() -> None:
    falling, rising = np.linspace(5, 1, 120), np.linspace(1, 5, 120)
    details = analyze({"falling": falling, "rising": rising}).layer_details
    assert details["falling"].health_metrics.convergence_indicator == pytest.approx(1, abs=0.5)
    assert details["falling"].health_metrics.convergence_indicator > 0.5  # pyright: ignore[reportOptionalOperand]
    assert details["rising"].health_metrics.convergence_indicator < -0.5  # pyright: ignore[reportOptionalOperand]
    network = analyze({"falling": falling}).network_level_analysis
    assert network.convergence_indicators.convergence_trend == "Unknown"
    assert network.convergence_indicators.unavailable["convergence_trend"] == "no loss was given"
    short = analyze(GOLDEN)
    indicator = short.layer_details["a"].health_metrics
    assert indicator.convergence_indicator is None
    assert indicator.unavailable["convergence_indicator"] == "95 more samples are needed"
    still = analyze({"still": np.zeros(100)}).layer_details["still"].health_metrics
    assert still.unavailable["convergence_indicator"] == "zero or non-finite samples in the window"
    indicators = short.network_level_analysis.convergence_indicators
    assert (indicators.gradient_convergence_score, indicators.parameter_convergence_score) == (None, None)
    assert (indicators.loss_convergence_score, indicators.estimated_steps_to_convergence) == (None, None)
    dynamics = short.network_level_analysis.training_dynamics
    assert (dynamics.learning_phase, dynamics.gradient_momentum, dynamics.learning_velocity) == (None, None, None)
    assert dynamics.plateau_detection.is_plateau is None


def test_loss_gives_trend_velocity_and_estimate() -> None:
    rng = np.random.default_rng(0)
    loss = 0.3 + 2 * np.exp(-np.arange(400) / 150) + rng.normal(0, 0.02, 400)
    network = analyze({"a": noise(400)}, loss=loss).network_level_analysis
    indicators = network.convergence_indicators
    assert indicators.convergence_trend == "Converging"
    assert indicators.loss_convergence_score > 0.6  # pyright: ignore[reportOptionalOperand]
    low, high = indicators.loss_slope_interval  # pyright: ignore[reportGeneralTypeIssues]
    assert low < indicators.loss_slope < high < 0  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    steps = 150 * math.log(100) - 400
    least, most = indicators.steps_interval  # pyright: ignore[reportGeneralTypeIssues]
    assert least <= steps <= most
    assert indicators.estimated_steps_to_convergence == pytest.approx(steps, rel=0.3)
    velocity = network.training_dynamics.learning_velocity
    assert velocity == pytest.approx((loss[300:350].mean() - loss[350:].mean()) / 50, rel=0.2)


def test_update_ratios_and_learning_rate() -> None:
    rate = np.geomspace(1e-2, 1e-4, 200)
    ratios = np.stack([rate, 2 * rate], axis=1) * noise(200, 1)[:, None]
    analysis = analyze({"net.a": noise(200), "net.b": noise(200, 2)}, update_ratios=ratios, learning_rate=rate)
    dynamics = analysis.network_level_analysis.training_dynamics
    assert dynamics.adaptation_rate == pytest.approx(np.median(ratios[-100:]))
    indicators = analysis.network_level_analysis.convergence_indicators
    assert indicators.parameter_convergence_score > 0.6  # pyright: ignore[reportOptionalOperand]
    (group,) = analysis.gradient_hierarchy.layer_groups
    assert group.group_characteristics.learning_rate_sensitivity == pytest.approx(1, abs=0.05)
    with pytest.raises(InputError, match="update_ratios"):
        analyze({"a": [1.0]}, update_ratios=[[1.0, 2.0]])
    with pytest.raises(InputError, match="learning_rate"):
        analyze({"a": [1.0]}, learning_rate=[1.0, 2.0])


def test_nonfinite_is_critical_and_leaves_others_alone() -> None:
    series = {"bad": [1.0, math.nan, 2.0, 1.0], "good": [1.0, 1.1, 1.0, 1.2]}
    analysis = analyze(series)
    assert analysis.layer_details["bad"].health_metrics.overall_health == "Critical"
    assert analysis.layer_details["bad"].gradient_statistics.nonfinite_count == 1
    assert analysis.layer_details["bad"].flow_characteristics.smoothness_index is None
    assert analysis.layer_details["good"].health_metrics.overall_health == "Healthy"
    scores = {priority.target_name: priority.priority_score for priority in analysis.optimization_priorities}
    assert scores["good"] < 0.5 < scores["bad"] <= 1
    everywhere = analyze({"bad": [math.inf] * 5})
    assert everywhere.network_level_analysis.overall_gradient_health == "Critical"


def test_empty_and_tiny_input() -> None:
    nothing = analyze({})
    assert nothing.layer_details == {}
    assert nothing.network_level_analysis.overall_gradient_health == "Unknown"
    assert nothing.optimization_priorities == []
    empty = analyze({"a": []}).layer_details["a"]
    assert empty.health_metrics.overall_health == "Unknown"
    assert empty.gradient_statistics.mean is None
    assert empty.health_metrics.neuron_activity_ratio is None
    one = analyze({"a": [0.3]}).layer_details["a"]
    assert one.health_metrics.overall_health == "Unknown"
    assert one.gradient_statistics.std == 0


def test_constant_explosion_is_critical() -> None:
    details = analyze({"a": [1e6] * 30}).layer_details["a"]
    assert details.health_metrics.overall_health == "Critical"
    assert details.flow_characteristics.stability_measure == pytest.approx(1)


def test_names_orders_and_activity() -> None:
    graph = [("second", "third"), ("first", "second")]
    histories = [GradientHistory.from_norms(name, noise(20)) for name in ("third", "first", "second")]
    analysis = EnhancedGradientAnalyzer("Basic").analyze_gradients(histories, graph, unit_activity={"first": 0.75})
    assert list(analysis.layer_details) == ["first", "second", "third"]
    assert analysis.layer_details["first"].health_metrics.neuron_activity_ratio == 0.75
    assert analysis.gradient_hierarchy.unavailable == {"layer_groups": "left out at this depth of analysis"}


def test_alias_and_bad_settings() -> None:
    analyzer = EnhancedGradientAnalyzer(depth="Standard", window=100, threshold=0.8)
    assert analyzer.generate_enhanced_analysis(GOLDEN) == analyzer.analyze_gradients(GOLDEN)
    with pytest.raises(InputError, match="Legal values: Basic"):
        EnhancedGradientAnalyzer("Deep")
    with pytest.raises(InputError, match="window"):
        EnhancedGradientAnalyzer(window=1)


def test_hierarchy_follows_the_modules() -> None:
    names = ["net.embed.weight", *(f"net.blocks.{i}.{p}.weight" for i in range(2) for p in ("a", "b")), "net.head.bias"]
    common = np.random.default_rng(5).normal(0, 0.2, 60)
    series = {name: np.exp(common + np.random.default_rng(i).normal(0, 0.02, 60)) for i, name in enumerate(names)}
    hierarchy = analyze(series).gradient_hierarchy
    assert [group.group_name for group in hierarchy.layer_groups] == [
        "net.embed", "net.blocks.0", "net.blocks.1", "net.head",
    ]  # fmt: skip
    assert [level.level_name for level in hierarchy.hierarchy_levels] == ["net.embed", "net.blocks", "net.head"]
    block = hierarchy.layer_groups[1]
    assert block.group_characteristics.gradient_synchronization > 0.9  # pyright: ignore[reportOptionalOperand]
    assert block.group_characteristics.average_gradient_norm == pytest.approx(1, abs=0.2)
    assert sum(level.level_importance or 0 for level in hierarchy.hierarchy_levels) == pytest.approx(1)
    assert {item.interaction_direction for item in hierarchy.cross_level_interactions} == {"Bidirectional"}


def test_exact_mean_correlation_without_visiting_pairs() -> None:
    rng = np.random.default_rng(8)
    series = {f"m.0.{i}": np.exp(np.cumsum(rng.normal(size=100)) * 0.1) for i in range(5)}
    (group,) = analyze(series).gradient_hierarchy.layer_groups
    changes = np.diff(np.log(np.stack(list(series.values()))), axis=1)
    table = np.corrcoef(changes)
    expected = table[np.triu_indices(5, 1)].mean()
    assert group.group_characteristics.gradient_synchronization == pytest.approx(expected)


@pytest.mark.parametrize("size", [1e-200, 1e-80, 1e80, 1e200])
def test_extreme_magnitudes_keep_their_shape(size: float) -> None:
    plain = analyze(GOLDEN).layer_details["a"]
    scaled = analyze({name: [size * value for value in norms] for name, norms in GOLDEN.items()}).layer_details["a"]
    assert scaled.gradient_statistics.mean == pytest.approx(3 * size)
    assert scaled.gradient_statistics.std == pytest.approx(math.sqrt(2) * size)
    assert scaled.gradient_statistics.kurtosis == pytest.approx(-1.3)
    assert scaled.flow_characteristics.stability_measure == pytest.approx(plain.flow_characteristics.stability_measure)
    assert scaled.flow_characteristics.consistency_score == pytest.approx(plain.flow_characteristics.consistency_score)


def test_gradients_that_turn_back_on_themselves_oscillate() -> None:
    """Their norms are calm: only the directions tell."""
    steps = np.arange(60)
    turning = GradientHistory.from_norms("turning", noise(60), sketches=np.stack([(-1.0) ** steps, 0.1 * steps**0], 1))
    given = GradientHistory.from_norms(  # what is given counts, not what sketches would say
        "given", noise(60, 1), cosines=np.r_[np.nan, np.full(59, -0.6)], sketches=np.ones((60, 2))
    )
    steady = GradientHistory.from_norms("steady", noise(60, 2), cosines=np.r_[np.nan, np.full(59, 0.2)])
    analysis = analyze([turning, given, steady, GradientHistory.from_norms("plain", noise(60, 3))])
    found = {name: details.flow_characteristics for name, details in analysis.layer_details.items()}
    assert {name for name, item in found.items() if item.is_oscillating} == {"turning", "given"}
    assert found["given"].direction_cosine == pytest.approx(-0.6)
    assert found["plain"].direction_cosine is None
    sources = analysis.network_level_analysis.stability_assessment.instability_sources
    assert {source.affected_layers[0]: source.severity for source in sources} == pytest.approx(
        {"turning": 0.98, "given": 0.6}, abs=0.01
    )


def test_speed_of_learning_ranks_layers_when_it_is_known() -> None:
    """Adam's updates do not follow the size of gradients."""
    series = {"small": np.full(120, 1e-3), "large": np.full(120, 10.0), "other": np.full(120, 1.0)}
    ratios = np.tile([1e-3, 1e-3, 0.5], (120, 1))
    compared = {
        name: details.comparative_analysis
        for name, details in analyze(series, update_ratios=ratios).layer_details.items()
    }
    assert [compared[name].rank_among_layers for name in series] == [1, 1, 3]
    assert compared["other"].optimization_potential == pytest.approx(1 - 1e-3 / 0.5)
    plain = analyze(series).layer_details["other"].comparative_analysis
    assert plain.rank_among_layers == 1


def test_a_flat_loss_at_the_end_of_the_schedule_is_no_plateau_to_act_on() -> None:
    rng = np.random.default_rng(2)
    loss = np.r_[np.linspace(2, 1, 200), np.ones(300)] + rng.normal(0, 0.01, 500)
    norms = {"a": noise(500)}
    constant = analyze(norms, loss=loss, learning_rate=np.full(500, 0.1)).network_level_analysis.training_dynamics
    assert constant.learning_phase == "Plateau"
    assert "Lower the learning rate" in constant.plateau_detection.suggested_actions[0]
    rate = np.linspace(0.1, 1e-4, 500)
    ended = analyze(norms, loss=loss, learning_rate=rate).network_level_analysis.training_dynamics
    assert ended.learning_phase == "Convergence"
    assert not any("Lower the learning rate" in action for action in ended.plateau_detection.suggested_actions)


def test_velocity_per_second() -> None:
    loss = np.linspace(2, 1, 200)
    dynamics = analyze({"a": noise(200)}, loss=loss, step_seconds=[0.5] * 200).network_level_analysis.training_dynamics
    assert dynamics.learning_velocity_per_second == pytest.approx(2 / 199)
    without = analyze({"a": noise(200)}, loss=loss).network_level_analysis.training_dynamics
    assert without.learning_velocity_per_second is None
    assert "how long" in without.unavailable["learning_velocity_per_second"]
