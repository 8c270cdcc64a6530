"""Verdicts that stand beside each other do not contradict each other."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from undertow import EnhancedGradientAnalyzer, GradientFlowAnimator, GradientFlowVisualizer
from undertow.schema import EnhancedLayerGradientAnalysis


def analysed(series: dict[str, list[float]]) -> EnhancedLayerGradientAnalysis:
    return EnhancedGradientAnalyzer("Basic").analyze_gradients(series)


def test_a_layer_without_a_live_sample_in_a_whole_window_does_not_recover() -> None:
    def potential(norms: list[float]) -> str:
        (zone,) = GradientFlowVisualizer().generate_visualization({"a": norms}).dead_zones
        return zone.recovery_potential

    assert potential([1.0] * 10 + [0.0] * 1000) == "None"
    assert potential([1.0] * 5 + [0.0] * 40) == "Medium"  # the window of 50 has live samples
    assert potential([1.0] * 2 + [0.0] * 40) == "Low"
    assert potential(([0.0] * 9 + [1.0]) * 9) == "High"


def test_health_of_the_network_weighs_shares_of_layers() -> None:
    def health(dead: int, of: int, nan: int = 0) -> str:
        layers = {f"layer{number}": [0.0 if number < dead else 1.0] * 12 for number in range(of)}
        layers |= {f"spoilt{number}": [math.nan] * 12 for number in range(nan)}
        return analysed(layers).network_level_analysis.overall_gradient_health

    assert [health(*case) for case in ((0, 9), (1, 1001), (3, 10), (4, 10))] == [
        "Healthy", "Warning", "Warning", "Critical",
    ]  # fmt: skip
    assert health(0, 1000, nan=1) == "Critical"
    assert analysed({}).network_level_analysis.overall_gradient_health == "Unknown"


def test_dead_and_nonfinite_layers_are_told_what_to_do() -> None:
    details = analysed({"dead": [0.0] * 12, "spoilt": [1.0, math.nan] * 6, "fine": [1.0] * 12}).layer_details
    kinds = {
        name: [str(one.suggestion_type) for one in detail.optimization_suggestions] for name, detail in details.items()
    }
    assert kinds["dead"] == ["ArchitecturalModification"]
    assert "OptimizationAlgorithm" in kinds["spoilt"]
    assert kinds["fine"] == []


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.5, 1.0), st.floats(-0.02, 0.02))
def test_a_trend_never_stands_beside_an_interval_around_zero(seed: int, memory: float, drift: float) -> None:
    chance, loss = np.random.default_rng(seed), [2.0]
    for shock in chance.normal(0, 0.1, 160):
        loss.append(memory * loss[-1] + shock + drift)
    found = EnhancedGradientAnalyzer("Basic").analyze_gradients({"a": [1.0]}, loss=loss).network_level_analysis
    indicators = found.convergence_indicators
    low, high = indicators.loss_slope_interval or (0.0, 0.0)
    if indicators.convergence_trend == "Converging":
        assert high < 0
    if indicators.convergence_trend == "Diverging":
        assert low > 0


def test_slow_noisy_fall_is_not_called_converging() -> None:
    """Twelve block means that all fall are a trend, but not where the interval of the slope spans zero."""
    found = []
    for seed in range(400):
        walk = 5 - 0.006 * np.arange(100) + np.cumsum(np.random.default_rng(seed).normal(0, 0.05, 100))
        analysis = EnhancedGradientAnalyzer("Basic").analyze_gradients({"a": [1.0]}, loss=walk)
        indicators = analysis.network_level_analysis.convergence_indicators
        low, high = indicators.loss_slope_interval or (0.0, 0.0)
        found.append((str(indicators.convergence_trend), low < 0 < high))
    assert ("Converging", True) not in found
    assert ("Converging", False) in found


def test_thinned_columns_show_their_worst_frame() -> None:
    animator = GradientFlowAnimator()
    for step in range(100):
        animator.record_step(step, {"a": [0.0 if step in (33, 34, 71) else 1.0], "b": [1.0]})
    lines = animator.to_ascii_animation(max_columns=20).splitlines()
    assert lines[1] == "layer  0         50"
    assert lines[3] == "    a  ██████ ███████ █████"
    assert lines[4] == "    b  " + "█" * 20
