"""The enhanced analysis, with the history and the alerts beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.components.conformance import original
from tests.components.conformance.flow_rules import A, B, C, random_series
from tests.components.conformance.rules import rule

from undertow import EnhancedGradientAnalyzer, GradientHistory, gradient_alerts
from undertow.schema import GradientFlow, InputError

TIME = np.arange(300)


def noise(seed: int = 0, count: int = 300, spread: float = 0.1) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, spread, count))


def analysis(series: Any = None, **extras: Any) -> Any:
    return EnhancedGradientAnalyzer().analyze_gradients(
        {"a": A, "b": B, "c": C} if series is None else series, **extras
    )


def network(series: Any = None, **extras: Any) -> Any:
    return analysis(series, **extras).network_level_analysis


def details(norms: Any, **extras: Any) -> Any:
    return analysis({"a": norms}, **extras).layer_details["a"]


@rule("enhanced", "mean, std and variance of the norms")
def _() -> None:
    for norms in random_series():
        if norms:
            found = details(norms).gradient_statistics
            assert (found.mean, found.std) == (pytest.approx(original.mean(norms)), pytest.approx(original.std(norms)))
            assert (found.variance, found.samples) == (pytest.approx(original.std(norms) ** 2), len(norms))


@rule("enhanced", "median: of an even number the mean of the middle two")
def _() -> None:
    for norms in random_series():
        if norms:
            assert details(norms).gradient_statistics.median == pytest.approx(original.median(norms))


@rule("enhanced", "skewness and kurtosis of the norms, 0 unless std > 0")
def _() -> None:
    for norms in random_series():
        if len(norms) > 1:
            found = details(norms).gradient_statistics
            assert (found.skewness, found.kurtosis) == (
                pytest.approx(original.moment(norms, 3)),
                pytest.approx(original.moment(norms, 4)),
            )
    assert details([2.0, 2.0]).gradient_statistics.skewness == 0


@rule("enhanced", "percentiles by truncation, without interpolation", "percentiles")
def _() -> None:
    found = details(list(range(1, 21))).gradient_statistics
    assert (found.percentile_5, found.percentile_95) == (pytest.approx(1.95), pytest.approx(19.05))


@rule("enhanced", "statistics of an empty history are zero", "empty-history")
def _() -> None:
    found = details([]).gradient_statistics
    assert (found.mean, found.samples, found.unavailable["mean"]) == (None, 0, "no samples")


@rule("enhanced", "consistency_score follows the rule of flow_consistency", "flow-consistency")
def _() -> None:
    assert details(A).flow_characteristics.consistency_score == pytest.approx(0.624225, abs=1e-6)


@rule("enhanced", "smoothness_index: 1/(1 + mean |second difference|)")
def _() -> None:
    for norms in random_series():
        if len(norms) >= 3:
            assert details(norms).flow_characteristics.smoothness_index == pytest.approx(original.smoothness(norms))


@rule("enhanced", "trend_strength: min(1, |least-squares slope|)")
def _() -> None:
    for norms in random_series():
        if len(norms) >= 3:
            assert details(norms).flow_characteristics.trend_strength == pytest.approx(
                min(1, abs(original.slope(norms)))
            )


@rule("enhanced", "oscillation_frequency: sign changes of the differences / n")
def _() -> None:
    for norms in random_series():
        if len(norms) >= 4:
            assert details(norms).flow_characteristics.oscillation_frequency == pytest.approx(original.turns(norms))


@rule("enhanced", "oscillation above 0.5 is a verdict", "oscillation")
def _() -> None:
    found = details(noise()).flow_characteristics
    assert (found.oscillation_frequency > 0.5, found.is_oscillating) == (True, False)
    assert details([1.0, 3.0] * 20).flow_characteristics.is_oscillating


@rule("enhanced", "stability_measure: 1/(1 + std/mean) of the whole history", "stability")
def _() -> None:
    assert details(np.linspace(1, 9, 100)).flow_characteristics.stability_measure == pytest.approx(1)  # was .63


@rule("enhanced", "information_flow_rate, as of the flow")
def _() -> None:
    assert details(A).health_metrics.information_flow_rate == pytest.approx(1.2)


@rule("enhanced", "neuron_activity_ratio from the size of the gradient", "neuron-activity")
def _() -> None:
    assert details(A).health_metrics.neuron_activity_ratio is None
    assert details(A, unit_activity={"a": 0.25}).health_metrics.neuron_activity_ratio == 0.25


@rule("enhanced", "convergence_indicator: regression in reversed order, 0.5 below the window", "convergence-indicator")
def _() -> None:
    falling = details(np.exp(-TIME / 100)).health_metrics.convergence_indicator
    rising = details(np.exp(TIME / 100)).health_metrics.convergence_indicator
    assert falling > 0.9 > -0.9 > rising
    assert details(A).health_metrics.convergence_indicator is None


@rule("enhanced", "a window below 3 is taken", "analyzer-range")
def _() -> None:
    for wrong in ({"window": 2}, {"threshold": 1.5}):
        with pytest.raises(InputError):
            EnhancedGradientAnalyzer(**wrong)  # type: ignore[arg-type]


@rule("enhanced", "risk factors by mean < 1e-5, mean > 100, stability < 0.5, oscillation > 0.5", "risk-factors")
def _() -> None:
    assert details([1e-6] * 20).health_metrics.risk_factors == ["vanishing gradient"]
    assert details([1e3] * 20).health_metrics.risk_factors == ["exploding gradient"]
    assert details(noise()).health_metrics.risk_factors == []


@rule("enhanced", "health by the number of risk factors", "layer-health")
def _() -> None:
    healths = [
        details(norms).health_metrics.overall_health for norms in (noise(), [1e6] * 30, [5e-6] * 30, [0.0] * 30, [1.0])
    ]
    assert healths == ["Healthy", "Critical", "Warning", "Critical", "Unknown"]


@rule(
    "enhanced",
    "suggestions: initialisation below 1e-5, learning rate above 10, regularisation for oscillation",
    "suggestions",
)
def _() -> None:
    def kinds(norms: Any) -> list[str]:
        return [str(one.suggestion_type) for one in details(norms).optimization_suggestions]

    assert kinds([1e-6] * 20) == ["WeightInitialization"]
    assert kinds([1.0] * 20 + [1e3] * 5)[0] == "LearningRateAdjustment"
    assert kinds([0.0] * 20) == ["ArchitecturalModification"]


@rule("enhanced", "expected_improvement and expected_impact of 0.5 to 0.8", "expected-gains")
def _() -> None:
    found = analysis({"a": [1e-6] * 20})
    (suggestion,) = found.layer_details["a"].optimization_suggestions
    assert (suggestion.expected_improvement, len(suggestion.side_effects)) == (None, 1)
    assert "until it is tried" in suggestion.unavailable["expected_improvement"]
    assert found.optimization_priorities[0].recommended_actions[0].expected_impact is None


@rule("enhanced", "relative_performance: own mean over the average of the others; performance_gap: their difference")
def _() -> None:
    compared = analysis().layer_details["a"].comparative_analysis
    assert (compared.relative_performance, compared.performance_gap) == (pytest.approx(17.142857), pytest.approx(2.825))


@rule("enhanced", "rank 1 has the largest mean norm", "rank")
def _() -> None:
    series = {"typical": [1.0] * 9, "also": [1.1] * 9, "exploding": [1e4] * 9}
    ranks = {name: one.comparative_analysis.rank_among_layers for name, one in analysis(series).layer_details.items()}
    assert ranks["exploding"] == 3


@rule("enhanced", "optimization_potential: 0.8, 0.6 or 0.3 by relative performance", "rank")
def _() -> None:
    assert analysis({"a": [1.0] * 9, "b": [4.0] * 9}).layer_details[
        "a"
    ].comparative_analysis.optimization_potential == pytest.approx(0.6)


@rule("enhanced", "similar layers: means within a factor of 1.2")
def _() -> None:
    found = analysis({"a": [1.0] * 9, "b": [1.1] * 9, "c": [2.0] * 9}).layer_details
    assert [found[name].comparative_analysis.similar_layers for name in "abc"] == [["b"], ["a"], []]


@rule("enhanced", "all similar layers are listed", "similar-layers")
def _() -> None:
    found = analysis({f"layer{number}": [1.0] * 9 for number in range(20)}).layer_details["layer0"]
    assert len(found.comparative_analysis.similar_layers) == 10


@rule("enhanced", "of a single layer: relative 1, rank 1, gap 0, potential 0.5", "single-layer")
def _() -> None:
    compared = details(A).comparative_analysis
    assert (compared.relative_performance, compared.rank_among_layers, compared.optimization_potential) == (
        None,
        1,
        None,
    )


@rule(
    "enhanced",
    "overall health by shares: Critical above 0.3 critical; Warning above 0.1 critical or 0.5 warning",
    "network-health",
)
def _() -> None:
    def health(dead: int, of: int) -> str:
        return network(
            {f"layer{number}": [0.0 if number < dead else 1.0] * 12 for number in range(of)}
        ).overall_gradient_health

    assert [health(0, 9), health(1, 1001), health(2, 10), health(4, 10)] == [
        "Healthy",
        "Warning",
        "Warning",
        "Critical",
    ]


@rule("enhanced", "overall health without layers is Healthy", "network-health")
def _() -> None:
    assert network({}).overall_gradient_health == "Unknown"


@rule("enhanced", "distribution: mean, variance, skewness and kurtosis of the layers' means")
def _() -> None:
    found = network().gradient_distribution
    assert (found.mean_gradient_norm, found.gradient_variance) == (
        pytest.approx(1.116667, abs=1e-6),
        pytest.approx(1.793889, abs=1e-6),
    )
    assert (found.gradient_skewness, found.gradient_kurtosis) == (
        pytest.approx(0.671064, abs=1e-6),
        pytest.approx(-1.5),
    )


@rule("enhanced", "layer_gradient_ratios: mean over the overall mean")
def _() -> None:
    assert network().gradient_distribution.layer_gradient_ratios == pytest.approx(
        {"a": 2.686567, "b": 0.313433, "c": 0}, abs=1e-6
    )


@rule("enhanced", "layer_gradient_ratios are 1 when all means are zero", "ratios-of-zeros")
def _() -> None:
    found = network({"a": C, "b": C}).gradient_distribution
    assert (found.layer_gradient_ratios, "layer_gradient_ratios" in found.unavailable) == ({"a": None, "b": None}, True)


@rule("enhanced", "distribution type from skewness and kurtosis of the means", "distribution-type")
def _() -> None:
    assert network().gradient_distribution.distribution_type is None  # was Multimodal, as any three layers are
    assert network({"a": A, "b": A}).gradient_distribution.distribution_type == "Degenerate"


@rule("enhanced", "interactions of every pair, from raw differences", "interactions")
def _() -> None:
    common = noise(1)
    found = network(
        {"a": common * noise(2, spread=0.01), "b": common * noise(3, spread=0.01), "c": noise(4)}
    ).layer_interactions
    assert [(one.layer1, one.layer2, one.interaction_type) for one in found] == [("a", "b", "Cooperative")]


@rule("enhanced", "impact_score is half the strength", "interactions")
def _() -> None:
    common = noise(1)
    sized = [
        GradientHistory.from_norms(name, common * noise(seed, spread=0.01), parameter_count=4)
        for seed, name in enumerate("abcd")
    ]
    found = network(sized).layer_interactions[0]
    assert found.impact_score == pytest.approx(found.interaction_strength / 2)


@rule("enhanced", "parameter and loss scores are 0.8 and 0.9 of the gradient's", "convergence-scores")
def _() -> None:
    without = network({"a": noise()}).convergence_indicators
    assert (without.parameter_convergence_score, without.loss_convergence_score) == (None, None)
    falling = network({"a": noise()}, loss=2 * np.exp(-TIME / 90)).convergence_indicators
    assert falling.loss_convergence_score > 0.7


@rule("enhanced", "convergence trend from the gradient norms", "convergence-trend")
def _() -> None:
    rising_norm = network({"a": np.exp(TIME / 100)}, loss=2 * np.exp(-TIME / 90)).convergence_indicators
    assert rising_norm.convergence_trend == "Converging"
    assert network({"a": np.exp(-TIME / 100)}).convergence_indicators.convergence_trend == "Unknown"


@rule("enhanced", "steps to convergence: (1 − s) · 1000", "steps-to-convergence")
def _() -> None:
    loss = 0.5 + 2 * np.exp(-TIME / 40) + np.random.default_rng(0).normal(0, 0.005, 300)
    steps = network({"a": noise()}, loss=loss).convergence_indicators.estimated_steps_to_convergence
    assert steps == 0  # 99 % of the way is done
    early = network({"a": noise()}, loss=2 * np.exp(-TIME / 90)).convergence_indicators
    assert 95 <= early.estimated_steps_to_convergence <= 130  # ln(100) · 90 − 300
    assert network().convergence_indicators.estimated_steps_to_convergence is None


@rule("enhanced", "learning phase from the gradient score", "learning-phase")
def _() -> None:
    assert network({"a": noise()}, loss=np.linspace(3, 1, 300)).training_dynamics.learning_phase == "RapidLearning"
    assert network().training_dynamics.learning_phase is None


@rule("enhanced", "gradient_momentum 0.8 s, learning_velocity 1.2 s, adaptation_rate 1 − s", "dynamics-constants")
def _() -> None:
    found = network(
        {"a": noise()}, loss=np.linspace(3, 1, 300), update_ratios=np.full((300, 1), 1e-3)
    ).training_dynamics
    assert found.gradient_momentum is None
    assert (found.learning_velocity, found.adaptation_rate) == (pytest.approx(2 / 299), pytest.approx(1e-3))


@rule("enhanced", "plateau when s > 0.9, duration 10, two actions", "plateau")
def _() -> None:
    loss = np.concatenate([np.linspace(2, 1, 100), np.ones(150)]) + np.random.default_rng(1).normal(0, 0.005, 250)
    found = network({"a": noise(count=250)}, loss=loss).training_dynamics.plateau_detection
    assert found.is_plateau
    assert found.plateau_duration > 100
    assert found.plateau_severity == "Mild"


@rule("enhanced", "plateau severity is Mild even without a plateau", "plateau")
def _() -> None:
    found = network({"a": noise()}, loss=np.linspace(3, 1, 300)).training_dynamics.plateau_detection
    assert (found.is_plateau, found.plateau_severity, found.unavailable["plateau_severity"]) == (
        False,
        None,
        "there is no plateau",
    )


@rule("enhanced", "overall_stability is the mean stability", "stability")
def _() -> None:
    found = network({name: noise(seed, spread=0.1 * (seed + 1)) for seed, name in enumerate("abc")})
    assert 0.7 < found.stability_assessment.overall_stability < 0.9


@rule("enhanced", "stability trend: Stable above stability_threshold, else Degrading", "stability-trend")
def _() -> None:
    spread = np.where(TIME < 150, 0.5, 0.05)
    calmer = np.exp(np.random.default_rng(3).normal(size=300) * spread)
    assert network({"a": calmer}).stability_assessment.stability_trend == "Improving"


@rule("enhanced", "forecast and confidence reuse the stability", "stability-trend")
def _() -> None:
    forecast = network({"a": noise()}).stability_assessment.stability_forecast
    assert (forecast.short_term_outlook, forecast.long_term_outlook) == ("Stable", "Stable")
    assert 0.5 < forecast.confidence_level <= 1
    assert network().stability_assessment.stability_forecast.confidence_level is None


@rule("enhanced", "two fixed hints for monitoring", "monitoring-hints")
def _() -> None:
    forecast = network({"a": noise()}).stability_assessment.stability_forecast
    assert forecast.recommended_monitoring == ["Recording every few steps is enough."]


@rule("enhanced", "instability: one record per layer and cause")
def _() -> None:
    found = network({"a": [1e3] * 20, "b": [1e-6] * 20}).stability_assessment.instability_sources
    assert [(one.source_type, one.affected_layers) for one in found if one.source_type != "Stagnation"] == [
        ("GradientExplosion", ["a"]), ("GradientVanishing", ["b"]),
    ]  # fmt: skip


@rule("enhanced", "instability severity: mean/100, 1 − 1e5·mean, or a frequency", "instability-severity")
def _() -> None:
    for power in range(3, 12):
        for one in network({"a": [10.0**power] * 20}).stability_assessment.instability_sources:
            assert 0 <= one.severity <= 1


@rule("enhanced", "groups by mean norm: above 1, 0.1 to 1, below 0.1", "hierarchy")
def _() -> None:
    series = {f"blocks.{number}.w": noise(number) for number in range(3)} | {"head.w": noise(9)}
    found = analysis(series).gradient_hierarchy
    assert [group.group_name for group in found.layer_groups] == ["blocks.0", "blocks.1", "blocks.2", "head"]
    assert [level.level_name for level in found.hierarchy_levels] == ["blocks", "head"]


@rule("enhanced", "group characteristics, coherence, importance and impact are constants", "hierarchy")
def _() -> None:
    found = analysis({"x.a": [3.0] * 30, "x.b": [5.0] * 30}).gradient_hierarchy
    (group,) = found.layer_groups
    assert group.group_characteristics.average_gradient_norm == pytest.approx(4)
    assert found.hierarchy_levels[0].level_importance == pytest.approx(1)


@rule("enhanced", "cross_level_interactions is always empty", "hierarchy")
def _() -> None:
    lead = noise(1, 400)
    series = {"a.w": lead * noise(2, 400, 0.01), "b.w": np.roll(lead, 1) * noise(3, 400, 0.01)}
    assert [one.interaction_direction for one in analysis(series).gradient_hierarchy.cross_level_interactions] == [
        "BottomUp"
    ]


@rule("enhanced", "priority: 0.4 health + 0.3 instability + 0.2 potential + 0.1 rate over the mean norm", "priority")
def _() -> None:
    found = analysis({"a": noise(), "b": [math.nan] * 300, "c": noise(2)})
    assert all(0 <= one.priority_score <= 1 for one in found.optimization_priorities)
    assert found.optimization_priorities[0].target_name == "b"


@rule("enhanced", "priorities are sorted, the highest first")
def _() -> None:
    scores = [one.priority_score for one in analysis().optimization_priorities]
    assert scores == sorted(scores, reverse=True)


@rule(
    "enhanced",
    "urgency: Critical of Critical; of Warning High below stability 0.3, else Medium; Low of Healthy, else Medium",
)
def _() -> None:
    found = {
        one.target_name: one.urgency_level
        for one in analysis({"a": noise(), "b": [0.0] * 300, "c": [1.0], "d": [5e-6] * 300}).optimization_priorities
    }
    assert (found["a"], found["b"], found["c"], found["d"]) == ("Low", "Critical", "Medium", "Medium")


@rule("enhanced", "actions: initialisation below 1e-5, learning rate above 10, clipping below stability 0.5", "actions")
def _() -> None:
    found = {
        one.target_name: [str(action.action_type) for action in one.recommended_actions]
        for one in analysis({"a": [1e-6] * 20, "b": [1.0] * 19 + [1e4], "c": [0.0] * 20}).optimization_priorities
    }
    assert found["a"] == ["ParameterAdjustment"]
    assert found["b"] == ["LearningRateScheduling", "OptimizationTechnique"]
    assert found["c"] == ["ArchitecturalChange"]


@rule("enhanced", "analysis_depth is ignored", "depth")
def _() -> None:
    basic = EnhancedGradientAnalyzer("Basic").analyze_gradients({"a.w": noise(), "b.w": noise(1)})
    assert (basic.gradient_hierarchy.layer_groups, "layer_groups" in basic.gradient_hierarchy.unavailable) == ([], True)


@rule("enhanced", "NaN in one layer: it is Healthy, and every other layer gets priority 1", "nonfinite")
def _() -> None:
    found = analysis({"a": [1.0, math.nan, 1.0] * 9, "b": noise(count=27)})
    assert found.layer_details["a"].health_metrics.overall_health == "Critical"
    assert found.network_level_analysis.overall_gradient_health == "Critical"
    assert found.layer_details["b"].health_metrics.overall_health == "Healthy"


@rule("enhanced", "an empty history is a Warning with full activity", "empty-history")
def _() -> None:
    metrics = details([]).health_metrics
    assert (metrics.overall_health, metrics.neuron_activity_ratio) == ("Unknown", None)


@rule("enhanced", "constants whatever the data, below 100 samples", "convergence-scores")
def _() -> None:
    assert (
        "more loss values are needed" in network(loss=[1.0] * 5).convergence_indicators.unavailable["convergence_trend"]
    )


@rule("enhanced", "generate_enhanced_analysis is an alias")
def _() -> None:
    analyzer = EnhancedGradientAnalyzer()
    assert analyzer.generate_enhanced_analysis({"a": A}) == analyzer.analyze_gradients({"a": A})


@rule("enhanced", "golden: mean 3, .35, 0; std 1.414214, .1, 0; kurtosis −1.3, −.95, 0")
def _() -> None:
    found = [one.gradient_statistics for one in analysis().layer_details.values()]
    assert [one.mean for one in found] == pytest.approx([3, 0.35, 0])
    assert [one.std for one in found] == pytest.approx([1.414214, 0.1, 0], abs=1e-6)
    assert [one.kurtosis for one in found] == pytest.approx([-1.3, -0.95, 0])


@rule("enhanced", "golden: smoothness .3, .895522, 1; trend .9, .065, 0; oscillation .4, .4, 0")
def _() -> None:
    found = [one.flow_characteristics for one in analysis().layer_details.values()]
    assert [one.smoothness_index for one in found] == pytest.approx([0.3, 0.895522, 1], abs=1e-6)
    assert [one.trend_strength for one in found] == pytest.approx([0.9, 0.065, 0])
    assert [one.oscillation_frequency for one in found] == pytest.approx([0.4, 0.4, 0])


@rule("enhanced", "history: the oldest of all buffers falls out when it is full")
def _() -> None:
    history = GradientHistory.new("a", 2)
    for step in range(3):
        history.add_gradient_flow(GradientFlow("a", step, float(step), 0.5, 0.1))
    assert (list(history.gradient_norms), list(history.step_numbers)) == ([1.0, 2.0], [1, 2])
    assert (len(history.gradient_means), len(history.gradient_stds)) == (2, 2)


@rule("enhanced", "history: get_trend_slope, absent below three samples")
def _() -> None:
    assert GradientHistory.from_norms("a", A).get_trend_slope() == pytest.approx(0.9)
    assert GradientHistory.from_norms("a", [1.0, 2.0]).get_trend_slope() is None


@rule(
    "enhanced", "alerts: vanishing below and exploding above their thresholds, dead neurons, no gradient for ten steps"
)
def _() -> None:
    found = gradient_alerts({"a": [1e-8], "b": [11.0], "c": [1.0], "d": [0.0] * 10}, unit_activity={"c": 0.8})
    assert [type(one).__name__ for one in found] == [
        "VanishingGradients",
        "ExplodingGradients",
        "DeadNeurons",
        "VanishingGradients",
        "NoGradientFlow",
    ]


@rule("enhanced", "alerts: oscillation fires on noise; adaptive thresholds drift along", "alerts")
def _() -> None:
    assert gradient_alerts({"a": noise()}) == []
    assert [type(one).__name__ for one in gradient_alerts({"a": [1.0, 3.0] * 20})] == ["GradientOscillation"]
