"""The enhanced analysis of a network: layers, network, hierarchy, priorities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undertow.analyze.layer_numbers import LayerNumbers, layer_numbers, with_directions
from undertow.analyze.series import Floats, LayerSeries
from undertow.analyze.topology import Topology
from undertow.components.flow_network import known
from undertow.components.gradient_stability import assess_stability
from undertow.components.hierarchy import build_hierarchy, group_layers
from undertow.components.interactions import layer_interactions
from undertow.components.layer_comparison import compare_layers, gradient_distribution
from undertow.components.layer_health import RECENT, LayerRisks, assess_layers, network_health, suggestions
from undertow.components.micro_batch_agreement import micro_batch_agreement
from undertow.components.priorities import optimization_priorities
from undertow.components.regions import Extremes
from undertow.components.training_phase import (
    TrainingSeries,
    convergence_indicators,
    training_dynamics,
    typical_ratios,
    with_usable_losses,
)
from undertow.schema.seeds.dynamics import LearningPhase, TrainingDynamics
from undertow.schema.seeds.enhanced import (
    AnalysisDepth,
    EnhancedLayerGradientAnalysis,
    GradientHierarchy,
    LayerGradientDetails,
    LayerInteraction,
    NetworkLevelAnalysis,
)
from undertow.schema.seeds.history import (
    ComparativeAnalysis,
    FlowCharacteristics,
    GradientStatistics,
    LayerHealth,
    LayerHealthMetrics,
)


@dataclass(frozen=True, slots=True)
class Depth:
    """What a depth buys: pairs of layers reported, and how many steps one may lead another."""

    pairs: int
    lags: int
    hierarchy: bool


DEPTHS = {
    AnalysisDepth.BASIC: Depth(0, 0, hierarchy=False),
    AnalysisDepth.STANDARD: Depth(64, 1, hierarchy=True),
    AnalysisDepth.COMPREHENSIVE: Depth(256, 3, hierarchy=True),
    AnalysisDepth.EXPERT: Depth(1024, 5, hierarchy=True),
}
SKIPPED = "left out at this depth of analysis"
SMALLEST_SCALE = 1e-30  # of a loss
SMALLEST_SHARE = 0.05  # of all losses


def enhanced_analysis(
    series: LayerSeries,
    training: TrainingSeries | None = None,
    *,
    topology: Topology | None = None,
    depth: AnalysisDepth = AnalysisDepth.STANDARD,
    window: int = 100,
    threshold: float = 0.8,
) -> EnhancedLayerGradientAnalysis:
    training, unit = with_usable_losses(training or TrainingSeries())
    numbers = with_directions(layer_numbers(series, window), training.gradient_cosine, window)
    extremes = Extremes.of(series, *_scales_of(training.loss, unit))
    risks = assess_layers(series, numbers, extremes, topology)
    compared = compare_layers(series, numbers.mean, risks.dead, typical_ratios(training.update_ratio, window))
    dynamics = training_dynamics(training, window, unit)
    convergence = convergence_indicators(training, numbers.convergence, window, unit)
    extent = DEPTHS[depth]
    order = list(topology.order) if topology else list(range(len(series.names)))
    grouping = group_layers(series, numbers.mean, order)
    ill = [health in (LayerHealth.WARNING, LayerHealth.CRITICAL) for health in risks.health]
    hierarchy = GradientHierarchy([], [], [], {"layer_groups": SKIPPED})
    interactions: list[LayerInteraction] = []
    if extent.hierarchy:
        hierarchy = build_hierarchy(
            series, numbers, grouping, ill,
            learning_rate=training.learning_rate, update_ratio=training.update_ratio,
        )  # fmt: skip
        interactions = layer_interactions(series, topology, strongest=extent.pairs, lags=extent.lags)
    agreement = micro_batch_agreement(training.noise_scale, window)
    unavailable = {} if extent.hierarchy else {"layer_interactions": SKIPPED}
    if agreement.reason:
        unavailable["gradient_agreement"] = agreement.reason
    network = NetworkLevelAnalysis(
        overall_gradient_health=network_health(risks.health),
        gradient_distribution=gradient_distribution(series, numbers.mean),
        layer_interactions=interactions,
        convergence_indicators=convergence,
        training_dynamics=dynamics,
        stability_assessment=assess_stability(series, numbers, extremes, threshold, risks.dead),
        gradient_agreement=agreement.value,
        conflicting_layers=[series.names[layer] for layer in agreement.conflicting],
        unavailable=unavailable,
    )
    return EnhancedLayerGradientAnalysis(
        layer_details=_details(series, numbers, risks, compared, dynamics, training, order, window),
        network_level_analysis=network,
        gradient_hierarchy=hierarchy,
        optimization_priorities=optimization_priorities(
            series, numbers, risks, [item.optimization_potential for item in compared],
            grouping.groups, convergence.convergence_trend, dynamics.learning_phase,
        ),
    )  # fmt: skip


def _scales_of(loss: Floats | None, unit: float) -> tuple[float, float]:
    """Of the latest losses, at most one, and of the smallest ones, at least one: gradients grow and fall with a loss
    that is multiplied by something, and fall with one that is all but learnt. One that has exploded began small.
    """
    known = np.array([]) if loss is None else unit * np.abs(loss[np.isfinite(loss)])
    if not len(known):
        return 1.0, 1.0
    latest, least = float(np.median(known[-RECENT:])), float(np.quantile(known, SMALLEST_SHARE))
    return min(1.0, max(latest, SMALLEST_SCALE)), max(1.0, min(least, 1 / SMALLEST_SCALE))


def _details(
    series: LayerSeries,
    numbers: LayerNumbers,
    risks: LayerRisks,
    compared: list[ComparativeAnalysis],
    dynamics: TrainingDynamics,
    training: TrainingSeries,
    order: list[int],
    window: int,
) -> dict[str, LayerGradientDetails]:
    overfits = dynamics.learning_phase is LearningPhase.OVERFITTING
    sizes = [count or 0 for count in series.parameter_counts]
    largest = int(np.argmax(sizes)) if overfits and any(sizes) else -1
    details: dict[str, LayerGradientDetails] = {}
    for layer in order:
        name = series.names[layer]
        advice = suggestions(risks.found[layer], risks.since_start[layer], risks.joined[layer], layer == largest)
        details[name] = LayerGradientDetails(
            layer_name=name,
            gradient_statistics=_statistics(numbers, layer),
            flow_characteristics=_characteristics(numbers, layer),
            health_metrics=_metrics(numbers, risks, layer, training.unit_activity.get(name), window),
            optimization_suggestions=advice,
            comparative_analysis=compared[layer],
        )
    return details


def _statistics(numbers: LayerNumbers, layer: int) -> GradientStatistics:
    std = known(numbers.std[layer])
    return GradientStatistics(
        mean=known(numbers.mean[layer]),
        std=std,
        median=known(numbers.median[layer]),
        percentile_95=known(numbers.percentile_95[layer]),
        percentile_5=known(numbers.percentile_5[layer]),
        samples=int(numbers.count[layer]),
        variance=None if std is None else std * std,
        skewness=known(numbers.skewness[layer]),
        kurtosis=known(numbers.kurtosis[layer]),
        nonfinite_count=int(numbers.nonfinite_count[layer]),
    )


def _characteristics(numbers: LayerNumbers, layer: int) -> FlowCharacteristics:
    slope = known(numbers.slope[layer])
    z, cosine = known(numbers.oscillation_z[layer]), known(numbers.direction_cosine[layer])
    values = {
        "consistency_score": known(numbers.consistency[layer]),
        "smoothness_index": known(numbers.smoothness[layer]),
        "trend_strength": None if slope is None else min(1.0, abs(slope)),
        "oscillation_frequency": known(numbers.turn_share[layer]),
        "stability_measure": known(numbers.stability[layer]),
    }
    reason = why_missing(numbers, layer)
    return FlowCharacteristics(
        **values,
        oscillation_z=z,
        is_oscillating=None if z is None and cosine is None else bool(numbers.oscillating[layer]),
        direction_cosine=cosine,
        unavailable={name: reason for name, value in values.items() if value is None},
    )


def why_missing(numbers: LayerNumbers, layer: int) -> str:
    if not numbers.count[layer]:
        return "no samples"
    if numbers.nonfinite_count[layer]:
        return f"{int(numbers.nonfinite_count[layer])} samples are not finite"
    if numbers.largest[layer] == 0:
        return "every sample is zero"
    return "too few samples"


def _metrics(
    numbers: LayerNumbers, risks: LayerRisks, layer: int, activity: float | None, window: int
) -> LayerHealthMetrics:
    unavailable: dict[str, str] = {}
    convergence = known(numbers.convergence[layer])
    if convergence is None:
        missing = window - int(numbers.count[layer])
        short = f"{missing} more samples are needed"
        unavailable["convergence_indicator"] = short if missing > 0 else "zero or non-finite samples in the window"
    if activity is None:
        unavailable["neuron_activity_ratio"] = "activations were not given"
    stability, rate = known(numbers.stability[layer]), known(numbers.flow_rate[layer])
    for name, value in (("gradient_stability", stability), ("information_flow_rate", rate)):
        if value is None:
            unavailable[name] = why_missing(numbers, layer)
    return LayerHealthMetrics(
        overall_health=risks.health[layer],
        gradient_stability=stability,
        information_flow_rate=rate,
        neuron_activity_ratio=activity,
        convergence_indicator=convergence,
        risk_factors=[str(risk) for risk in risks.found[layer]],
        unavailable=unavailable,
    )
