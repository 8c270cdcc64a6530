"""Every enum value is reached by an input made for it. The table in docs/components/enums.md says how."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undertow import EnhancedGradientAnalyzer, GradientFlowAnimator, GradientFlowVisualizer, GradientHistory, schema
from undertow import WeightAnalyzer as Weights

TIME = np.arange(400)


def noise(seed: int = 0, count: int = 400, spread: float = 0.1) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, spread, count))


def history(norms: Any, size: int = 100) -> GradientHistory:
    return GradientHistory.from_norms("layer", norms, parameter_count=size)


def enhanced(series: Any = None, depth: str = "Standard", **extras: Any) -> Any:
    series = {"a": noise(), "b": noise(1)} if series is None else series
    return EnhancedGradientAnalyzer(depth).analyze_gradients(series, **extras)


def network(series: Any = None, **extras: Any) -> Any:
    return enhanced(series, **extras).network_level_analysis


def flow(series: Any, graph: Any = None) -> Any:
    return GradientFlowVisualizer().generate_visualization(series, graph=graph)


def node(norms: dict[str, list[float]], graph: Any, name: str) -> str:
    return next(item.node_type for item in flow(norms, graph).flow_network.nodes if item.layer_name == name)


def edge(first: Any, second: Any) -> str:
    return flow({"a": first, "b": second}, [("a", "b")]).flow_network.edges[0].edge_type


def direction(norms: Any) -> str:
    return flow({"a": norms}).temporal_flows[-1].flow_direction


def trend(loss: np.ndarray) -> str:
    return network(loss=loss).convergence_indicators.convergence_trend


def phase(loss: np.ndarray, validation: Any = None) -> str:
    return network(loss=loss, validation_loss=validation).training_dynamics.learning_phase


def plateau(length: int) -> str:
    loss = np.concatenate([np.linspace(2, 1, 100), np.ones(length)])
    loss += np.random.default_rng(1).normal(0, 0.005, len(loss))
    return network(loss=loss).training_dynamics.plateau_detection.plateau_severity


def stability(spread: np.ndarray, base: float = 1.0) -> Any:
    rng = np.random.default_rng(3)
    return network({"a": base * np.exp(rng.normal(size=len(spread)) * spread)}).stability_assessment


def outlook(spread: np.ndarray) -> tuple[str, str]:
    forecast = stability(spread).stability_forecast
    return forecast.short_term_outlook, forecast.long_term_outlook


CALM, WILD = np.full(400, 0.05), np.full(400, 0.8)
LATE = np.where(TIME < 350, 0.05, 0.5)  # only the last eighth is restless
SETTLED = np.where(TIME < 350, 0.5, 0.05)
RISING, SINKING = np.where(TIME < 200, 0.05, 0.5), np.where(TIME < 200, 0.5, 0.05)


def sources(norms: Any) -> set[str]:
    return {source.source_type for source in network({"a": norms}).stability_assessment.instability_sources}


def suggested(series: Any, **extras: Any) -> set[str]:
    details = enhanced(series, **extras).layer_details.values()
    return {item.suggestion_type for detail in details for item in detail.optimization_suggestions}


def complexities(series: Any, **extras: Any) -> set[str]:
    details = enhanced(series, **extras).layer_details.values()
    return {item.implementation_complexity for detail in details for item in detail.optimization_suggestions}


def actions(field: str, series: Any = None, **extras: Any) -> set[str]:
    priorities = enhanced(series, **extras).optimization_priorities
    return {getattr(action, field) for item in priorities for action in item.recommended_actions}


def targets(series: Any) -> set[str]:
    return {item.target_type for item in enhanced(series).optimization_priorities}


def urgency(norms: Any) -> str:
    return next(
        item.urgency_level for item in enhanced({"a": norms}).optimization_priorities if item.target_name == "a"
    )


def difficulty(spread: float) -> str:
    (group,) = enhanced(
        {"m.a": noise(1, spread=spread), "m.b": noise(2, spread=spread)}
    ).gradient_hierarchy.layer_groups
    return group.group_characteristics.optimization_difficulty


def interaction(first: np.ndarray, second: np.ndarray) -> str:
    items = network({"a": first, "b": second}, graph=[("a", "b")]).layer_interactions
    return items[0].interaction_type


def bursts() -> tuple[np.ndarray, np.ndarray]:
    """b is restless one step after a is, in directions of its own."""
    rng = np.random.default_rng(4)
    size = np.where(rng.random(400) < 0.1, 1.0, 0.02)
    return np.exp(rng.normal(size=400) * size), np.exp(rng.normal(size=400) * np.roll(size, 1))


def cross(lag: int) -> str:
    common = np.random.default_rng(5).normal(0, 0.3, 500)
    series = {f"{name}.w": np.exp(np.roll(common, shift)[50:450]) for name, shift in (("in", 0), ("out", lag))}
    (item,) = enhanced(series).gradient_hierarchy.cross_level_interactions
    return item.interaction_direction


def shape(levels: np.ndarray) -> str:
    return network(
        {str(i): np.full(5, level) for i, level in enumerate(levels)}
    ).gradient_distribution.distribution_type


def health(norms: Any) -> str:
    return enhanced({"a": norms}).layer_details["a"].health_metrics.overall_health


def animated(*values: float) -> str:
    animator = GradientFlowAnimator()
    for step, value in enumerate(values):
        animator.record_step(step, {"a": [value]})
    return animator.summary_report().overall_health


def explosion(norm: float) -> str:
    return Weights.detect_gradient_explosion([[1.0], [1.0], [norm]], 5.0).exploding_layers[0].severity


def weight_status(values: list[float]) -> str:
    return Weights.analyze_weight_distribution([values]).distribution_health.status  # pyright: ignore[reportOptionalMemberAccess]


def outlier(value: float) -> str:
    values = np.append(np.random.default_rng(0).normal(size=1000).clip(-2, 2), value)
    return Weights.analyze_weight_distribution([values]).outlier_detection[0].severity


def drift(step: float) -> str:
    return Weights.analyze_weight_drift([np.ones(4)], [np.ones(4) + step]).severity  # pyright: ignore[reportReturnType]


def weight_issue(values: list[float]) -> set[str]:
    return set(Weights.analyze_weight_distribution([values]).layer_analyses[0].kinds_of_issue)


def presence(gradient: Any) -> str:
    animator = GradientFlowAnimator()
    animator.record_step(0, {"a": gradient})
    return animator.frames()[0].layers[0].presence


def issue(gradient: Any) -> set[str]:
    animator = GradientFlowAnimator()
    animator.record_step(0, {"a": gradient})
    return {count.issue for count in animator.summary_report().issue_counts}


rng = np.random.default_rng(9)
FALLING = np.linspace(2, 1, 400) + rng.normal(0, 0.02, 400)
FLAT = 1 + rng.normal(0, 0.005, 400)
CHAIN3 = [("x", "y"), ("y", "z")]
ONE, TENTH, ZERO = [1.0] * 20, [0.05] * 20, [0.0] * 20
SMALL_PAIR = {"x": history([1e-7] * 5), "y": history([1e-7] * 5), "z": history([1.0] * 5)}
OVERFIT = {"loss": FALLING, "validation_loss": 1 + np.abs(TIME[::5] - 100) / 100}

CASES: dict[str, dict[str, Callable[[], Any]]] = {
    "FlowDirection": {
        "Forward": lambda: direction([1, 2, 3]),
        "Backward": lambda: direction([3, 2, 1]),
        "Oscillating": lambda: direction([1, 5] * 10),
        "Stagnant": lambda: direction([1, 1, 1]),
    },
    "NodeType": {
        "Source": lambda: node({"x": ONE, "y": ONE, "z": ONE}, CHAIN3, "x"),
        "Sink": lambda: node({"x": ONE, "y": ONE, "z": ONE}, CHAIN3, "z"),
        "Normal": lambda: node({"x": ONE, "y": ONE, "z": ONE}, CHAIN3, "y"),
        "Bottleneck": lambda: node({"x": TENTH, "y": TENTH, "z": ONE}, CHAIN3, "y"),
        "Amplifier": lambda: node({"x": ONE, "y": ONE, "z": TENTH}, CHAIN3, "y"),
        "Dead": lambda: node({"x": ONE, "y": ZERO, "z": ONE}, CHAIN3, "y"),
        "NonFinite": lambda: node({"x": ONE, "y": [*ONE[:-1], float("nan")], "z": ONE}, CHAIN3, "y"),
    },
    "EdgeType": {
        "Strong": lambda: edge(ONE, ONE),
        "Weak": lambda: edge([1e-3] * 20, ONE),
        "Intermittent": lambda: edge([0.0, 1.0] * 10, ONE),
        "Blocked": lambda: edge(ZERO, ONE),
    },
    "VanishingSeverity": {
        name: lambda value=value: flow({"a": [value] * 5}).vanishing_regions[0].severity_level
        for name, value in (("Mild", 5e-6), ("Moderate", 5e-7), ("Severe", 5e-8), ("Critical", 5e-9))
    },
    "ExplodingSeverity": {
        name: lambda value=value: flow({"a": [value] * 5}).exploding_regions[0].severity_level
        for name, value in (("Mild", 2e2), ("Moderate", 2e3), ("Severe", 2e4), ("Critical", 2e5))
    },
    "RecoveryPotential": {
        name: lambda norms=norms: flow({"a": norms}).dead_zones[0].recovery_potential
        for name, norms in (
            ("High", [0, 0, 1] * 4), ("Medium", [0] * 6 + [1] * 4), ("Low", [0] * 19 + [1]), ("None", [0] * 50),
        )
    },
    "GradientHealth": {
        "Healthy": lambda: animated(0.1),
        "MinorIssues": lambda: animated(0.0, 0.1, 0.1, 0.1),
        "ProblemsDetected": lambda: animated(0.0, 0.0, 0.1),
        "Critical": lambda: animated(2e3),
    },
    "GradientPresence": {
        "present": lambda: presence([1.0]),
        "non-finite": lambda: presence([np.nan]),
        "empty": lambda: presence([]),
        "missing": lambda: presence(None),
    },
    "GradientIssue": {
        "vanishing": lambda: issue([0.0]),
        "exploding": lambda: issue([1e4]),
        "non-finite": lambda: issue([np.nan]),
        "empty": lambda: issue([]),
        "missing": lambda: issue(None),
    },
    "ExplosionSeverity": {
        "Low": lambda: explosion(8),
        "Medium": lambda: explosion(20),
        "High": lambda: explosion(40),
        "Critical": lambda: explosion(200),
    },
    "WeightIssue": {
        "non-finite": lambda: weight_issue([np.nan]),
        "zeros": lambda: weight_issue([0.0, 0.0, 1.0]),
        "skewed": lambda: weight_issue([0.0] * 9 + [1.0]),
        "heavy-tailed": lambda: weight_issue([-0.01, 0.01] * 40 + [-5.0, 5.0]),
        "extreme": lambda: weight_issue([-11.0, 11.0]),
    },
    "DistributionHealthStatus": {
        "Excellent": lambda: weight_status([-1.0, 1.0]),
        "Good": lambda: weight_status([-6.0, 6.0]),
        "Fair": lambda: weight_status([0.0] * 8 + [1.0, 2.0]),
        "Poor": lambda: weight_status([0.01] * 39 + [20.0]),
        "Critical": lambda: weight_status([0.0] * 39 + [20.0]),
    },
    "OutlierSeverity": {"Medium": lambda: outlier(4.0), "High": lambda: outlier(9.0)},
    "WeightDriftSeverity": {
        "Minimal": lambda: drift(0.05), "Low": lambda: drift(0.5), "Medium": lambda: drift(2.0),
        "High": lambda: drift(20.0),
    },
    "LayerHealth": {
        "Healthy": lambda: health(noise()),
        "Warning": lambda: health([200.0] * 20),
        "Critical": lambda: health(ZERO),
        "Unknown": lambda: health([1.0]),
    },
    "DistributionType": {
        "Normal": lambda: shape(10 ** np.random.default_rng(0).normal(0, 0.3, 30)),
        "Skewed": lambda: shape(10 ** np.random.default_rng(0).exponential(0.5, 60)),
        "HeavyTailed": lambda: shape(10 ** (np.tan(np.linspace(-1.5, 1.5, 61)) * 0.1)),
        "Multimodal": lambda: shape(np.r_[np.linspace(1, 2, 10), np.linspace(1e4, 2e4, 10)]),
        "Degenerate": lambda: shape(np.ones(10)),
    },
    "InteractionType": {
        "Cooperative": lambda: interaction(noise(1), noise(1) * noise(2, spread=0.01)),
        "Competitive": lambda: interaction(noise(1), 1 / noise(1)),
        "Neutral": lambda: interaction(noise(1), noise(2)),
        "Disruptive": lambda: interaction(*bursts()),
    },
    "ConvergenceTrend": {
        "Converging": lambda: trend(FALLING),
        "Stable": lambda: trend(FLAT),
        "Diverging": lambda: trend(FALLING[::-1]),
        "Oscillating": lambda: trend(2 + 0.5 * (-1.0) ** TIME + 0.1 * noise()),
        "Unknown": lambda: trend(1 + rng.normal(0, 1, 400)),
    },
    "LearningPhase": {
        "InitialLearning": lambda: phase(FLAT),
        "RapidLearning": lambda: phase(FALLING),
        "Refinement": lambda: phase(5 * np.exp(-TIME / 30) + np.linspace(1, 0.5, 400) + 0.01 * noise()),
        "Convergence": lambda: phase(np.r_[FALLING, 1 + rng.normal(0, 0.02, 95)]),
        "Plateau": lambda: phase(np.r_[FALLING, 1 + rng.normal(0, 0.02, 300)]),
        "Overfitting": lambda: phase(OVERFIT["loss"], OVERFIT["validation_loss"]),
    },
    "PlateauSeverity": {
        "Mild": lambda: plateau(150), "Moderate": lambda: plateau(300), "Severe": lambda: plateau(600),
    },
    "StabilityTrend": {
        "Improving": lambda: stability(SINKING).stability_trend,
        "Stable": lambda: stability(CALM).stability_trend,
        "Degrading": lambda: stability(RISING).stability_trend,
    },
    "StabilityOutlook": {
        "Stable": lambda: set(outlook(CALM)) & {"Stable"},
        "Improving": lambda: {outlook(SETTLED)[0]} & {outlook(SINKING)[1]},
        "Deteriorating": lambda: {outlook(LATE)[0]} & {outlook(RISING)[1]},
        "Uncertain": lambda: {outlook(WILD)[0]} & {outlook(WILD)[1]},
    },
    "InstabilityType": {
        "GradientExplosion": lambda: sources([1e3] * 20),
        "GradientVanishing": lambda: sources([1e-7] * 20),
        "Oscillation": lambda: sources([1.0, 3.0] * 50),
        "Stagnation": lambda: sources([1.0] * 120),
        "Chaos": lambda: sources(noise(0, 100, 1.5)),
    },
    "OptimizationDifficulty": {
        "Easy": lambda: difficulty(0.05), "Moderate": lambda: difficulty(0.35), "Difficult": lambda: difficulty(0.8),
        "VeryDifficult": lambda: difficulty(3.0),
    },
    "InteractionDirection": {
        "BottomUp": lambda: cross(2), "TopDown": lambda: cross(-2), "Bidirectional": lambda: cross(0),
    },
    "OptimizationTarget": {
        "IndividualLayer": lambda: targets({"a": ONE}),
        "LayerGroup": lambda: targets({"m.0.a": ZERO, "m.0.b": ZERO, "m.1.a": ONE, "m.1.b": ONE, "m.2.a": ONE}),
        "NetworkLevel": lambda: targets({"a": ZERO, "b": ZERO}),
    },
    "UrgencyLevel": {
        "Low": lambda: urgency(noise()),
        "Medium": lambda: urgency([200.0] * 20),
        "High": lambda: urgency(np.where(np.random.default_rng(0).random(100) < 0.1, 90.0, 0.01)),
        "Critical": lambda: urgency(ZERO),
    },
    "ActionType": {
        "ParameterAdjustment": lambda: actions("action_type", {"a": [1e-7] * 20}),
        "ArchitecturalChange": lambda: actions("action_type", {"a": ZERO}),
        "OptimizationTechnique": lambda: actions("action_type", {"a": noise(0, 100, 1.5)}),
        "RegularizationMethod": lambda: actions("action_type", **OVERFIT),
        "LearningRateScheduling": lambda: actions("action_type", {"a": [1.0, 3.0] * 50}),
    },
    "ImplementationEffort": {
        "Minimal": lambda: actions("implementation_effort", {"a": [1.0, 3.0] * 50}),
        "Low": lambda: actions("implementation_effort", {"a": noise(0, 100, 1.5)}),
        "Moderate": lambda: actions("implementation_effort", {"a": [1e-7] * 20}),
        "High": lambda: actions("implementation_effort", {"a": ZERO}),
        "Extensive": lambda: actions("implementation_effort", {"a": ZERO, "b": ZERO}),
    },
    "SuggestionType": {
        "WeightInitialization": lambda: suggested({"a": [1e-7] * 20}),
        "LearningRateAdjustment": lambda: suggested({"a": [1.0] * 20 + [1e4] * 20}),
        "RegularizationAdd": lambda: suggested({"a": history(noise())}, **OVERFIT),
        "ArchitecturalModification": lambda: suggested(SMALL_PAIR, graph=CHAIN3),
        "OptimizationAlgorithm": lambda: suggested({"a": noise(0, 100, 1.5)}),
        "BatchNormalization": lambda: suggested({"a": [1e-4] * 20, "b": ONE, "c": ONE}),
        "DropoutAdjustment": lambda: suggested({"a": [0.0, 1.0, 1.0, 1.0] * 10}),
    },
    "ImplementationComplexity": {
        "Simple": lambda: complexities({"a": [1.0] * 20 + [1e4] * 20}),
        "Moderate": lambda: complexities({"a": noise(0, 100, 1.5)}),
        "Complex": lambda: complexities(SMALL_PAIR, graph=CHAIN3),
        "RequiresRetraining": lambda: complexities({"a": [1e-7] * 20}),
    },
}  # fmt: skip

# These are chosen by the user, not concluded.
SETTINGS = {"ColorScheme", "AnalysisDepth"}


@pytest.mark.parametrize(("enum", "value"), [(enum, value) for enum, cases in CASES.items() for value in cases])
def test_value_is_reached(enum: str, value: str) -> None:
    reached = CASES[enum][value]()
    reached = reached if isinstance(reached, set) else {reached}
    assert value in reached, reached


def all_enums() -> dict[str, Any]:
    from enum import StrEnum

    from undertow.schema import seeds

    found = {name: getattr(seeds, name) for name in seeds.__all__}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, StrEnum)}


def test_no_value_is_left_out() -> None:
    offered = {name: {str(value) for value in kind} for name, kind in all_enums().items() if name not in SETTINGS}
    assert {name: set(cases) for name, cases in CASES.items()} == offered


def test_values_are_strings_and_importable_from_schema() -> None:
    assert schema.NodeType.BOTTLENECK == "Bottleneck"
    assert str(schema.NodeType.BOTTLENECK) == "Bottleneck"
    assert schema.AnalysisDepth("Expert") is schema.AnalysisDepth.EXPERT
    assert [str(value) for value in schema.ColorScheme] == ["Default", "HighContrast", "ColorBlind", "Monochrome"]


def test_depth_buys_more() -> None:
    series = {f"m.{i}.w": noise(1) * noise(i + 2, spread=0.02) for i in range(20)}
    counts = [len(network_of.layer_interactions) for network_of in (
        enhanced(series, depth).network_level_analysis for depth in ("Basic", "Standard", "Comprehensive", "Expert")
    )]  # fmt: skip
    assert counts == [0, 64, 190, 190]


def test_the_table_in_the_docs_names_every_value() -> None:
    text = (Path(__file__).parents[2] / "docs/components/enums.md").read_text("utf-8")
    rows = {tuple(re.findall(r"`([^`]+)`", line)[:2]) for line in text.splitlines() if line.startswith("| `")}
    expected = {(name, str(value)) for name, kind in all_enums().items() for value in kind}
    assert expected <= rows, sorted(expected - rows)


@pytest.mark.parametrize(
    ("spread", "hint"),
    [(LATE, "Keep a checkpoint"), (RISING, "Keep a checkpoint"), (CALM, "Recording every few steps")],
)
def test_advice_goes_with_the_outlook(spread: np.ndarray, hint: str) -> None:
    said = " ".join(stability(spread).stability_forecast.recommended_monitoring)
    assert hint in said
