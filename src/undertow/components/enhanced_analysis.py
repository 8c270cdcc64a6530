"""The enhanced analysis of a network: layers, network, hierarchy, priorities."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from undertow.analyze.layer_numbers import LayerNumbers, layer_numbers, with_directions
from undertow.analyze.oscillation import MINIMUM as ENOUGH_TO_OSCILLATE
from undertow.analyze.run_series import TrainingSeries
from undertow.analyze.series import Floats, LayerSeries
from undertow.analyze.topology import Topology
from undertow.components.gradient_flow import NO_DIRECTIONS
from undertow.components.gradient_stability import assess_stability
from undertow.components.hierarchy import build_hierarchy, group_layers
from undertow.components.interactions import layer_interactions
from undertow.components.layer_comparison import compare_layers, gradient_distribution
from undertow.components.layer_health import RECENT, LayerVerdicts, assess_layers
from undertow.components.micro_batch_agreement import micro_batch_agreement
from undertow.components.priorities import ILL, network_actions, optimization_priorities
from undertow.components.regions import Extremes
from undertow.components.run_verdicts import CONFLICTING, RunVerdicts
from undertow.components.training_phase import (
    convergence_indicators,
    training_dynamics,
    typical_ratios,
    with_usable_losses,
)
from undertow.schema import seeds
from undertow.schema.reasons import Missing, known, record_of

# What a depth buys: pairs of layers reported, and how many steps one may lead another. Without pairs, no hierarchy.
DEPTHS = {
    seeds.AnalysisDepth.BASIC: (0, 0),
    seeds.AnalysisDepth.STANDARD: (64, 1),
    seeds.AnalysisDepth.COMPREHENSIVE: (256, 3),
    seeds.AnalysisDepth.EXPERT: (1024, 5),
}
SKIPPED = "left out at this depth of analysis"
SMALLEST_SCALE = 1e-30  # of a loss
SMALLEST_SHARE = 0.05  # of all losses


def enhanced_analysis(
    series: LayerSeries,
    training: TrainingSeries | None = None,
    *,
    topology: Topology | None = None,
    depth: seeds.AnalysisDepth = seeds.AnalysisDepth.STANDARD,
    window: int = 100,
    threshold: float = 0.8,
    run_verdicts: RunVerdicts | None = None,
) -> seeds.EnhancedLayerGradientAnalysis:
    """`run_verdicts` are those of a run's diagnosis; without them the original's limits decide."""
    training, unit = with_usable_losses(training or TrainingSeries())
    numbers = with_directions(layer_numbers(series, window), training.gradient_cosine, window)
    extremes = Extremes.of(series, *_scales_of(training.loss, unit))
    convergence = convergence_indicators(training, numbers.convergence, window, unit)
    agreement = micro_batch_agreement(training.noise_scale, window)
    if run_verdicts is None:
        dynamics = training_dynamics(training, window, unit, None)
        overfits = dynamics.learning_phase is seeds.LearningPhase.OVERFITTING
        actions = network_actions(convergence.convergence_trend, dynamics.learning_phase)
        verdicts = replace(assess_layers(series, numbers, extremes, topology, overfits), network_actions=actions)
        stability = assess_stability(series, numbers, extremes, threshold, verdicts.dead)
        conflicting = [series.names[layer] for layer in agreement.conflicting]
    else:
        dynamics = training_dynamics(training, window, unit, partial(run_verdicts.of_plateau, series.steps))
        dynamics = run_verdicts.of_phase(dynamics)
        convergence = run_verdicts.of_convergence(convergence)
        verdicts = run_verdicts.of_layers(series, numbers)
        stability = run_verdicts.of_stability(assess_stability(series, numbers, extremes, threshold, verdicts.dead))
        conflicting = run_verdicts.named_by(series.names, CONFLICTING)
    compared = compare_layers(series, numbers.mean, verdicts.dead, typical_ratios(training.update_ratio, window))
    pairs, lags = DEPTHS[depth]
    order = list(topology.order) if topology else list(range(len(series.names)))
    grouping = group_layers(series, numbers.mean, order)
    hierarchy = seeds.GradientHierarchy([], [], [], {"layer_groups": SKIPPED})
    interactions: list[seeds.LayerInteraction] = []
    if pairs:
        hierarchy = build_hierarchy(
            series, numbers, grouping, [health in ILL for health in verdicts.health],
            learning_rate=training.learning_rate, update_ratio=training.update_ratio,
        )  # fmt: skip
        interactions = layer_interactions(series, topology, strongest=pairs, lags=lags)
    network = record_of(
        seeds.NetworkLevelAnalysis,
        overall_gradient_health=verdicts.network_health,
        gradient_distribution=gradient_distribution(series, numbers.mean),
        layer_interactions=interactions,
        convergence_indicators=convergence,
        training_dynamics=dynamics,
        stability_assessment=stability,
        gradient_agreement=Missing(agreement.reason) if agreement.reason else agreement.value,
        conflicting_layers=conflicting,
        unavailable={} if pairs else {"layer_interactions": SKIPPED},
    )
    details = {
        series.names[layer]: seeds.LayerGradientDetails(
            layer_name=series.names[layer],
            gradient_statistics=_statistics(numbers, layer),
            flow_characteristics=_characteristics(numbers, layer, bool(verdicts.oscillating[layer])),
            health_metrics=_metrics(numbers, verdicts, layer, training.unit_activity.get(series.names[layer]), window),
            optimization_suggestions=verdicts.suggestions[layer],
            comparative_analysis=compared[layer],
        )
        for layer in order
    }
    potentials = [item.optimization_potential for item in compared]
    priorities = optimization_priorities(series, numbers, verdicts, potentials, grouping.groups)
    return seeds.EnhancedLayerGradientAnalysis(details, network, hierarchy, priorities)


def _scales_of(loss: Floats | None, unit: float) -> tuple[float, float]:
    """Of the latest losses, at most one, and of the smallest ones, at least one: gradients grow and fall with a loss
    that is multiplied by something, and fall with one that is all but learnt. One that has exploded began small.
    """
    known = np.array([]) if loss is None else unit * np.abs(loss[np.isfinite(loss)])
    if not len(known):
        return 1.0, 1.0
    latest, least = float(np.median(known[-RECENT:])), float(np.quantile(known, SMALLEST_SHARE))
    return min(1.0, max(latest, SMALLEST_SCALE)), max(1.0, min(least, 1 / SMALLEST_SCALE))


def _statistics(numbers: LayerNumbers, layer: int) -> seeds.GradientStatistics:
    names = ("mean", "std", "median", "percentile_95", "percentile_5", "skewness", "kurtosis")
    why = "no sample is finite" if numbers.count[layer] else "no samples"
    std = float(numbers.std[layer])
    values: dict[str, Any] = {name: known(getattr(numbers, name)[layer], why) for name in names}
    return record_of(
        seeds.GradientStatistics,
        **values,
        samples=int(numbers.count[layer]),
        variance=known(std * std, why),
        nonfinite_count=int(numbers.nonfinite_count[layer]),
    )


def _characteristics(numbers: LayerNumbers, layer: int, oscillating: bool) -> seeds.FlowCharacteristics:
    why = _why_missing(numbers, layer)
    z = known(numbers.oscillation_z[layer], f"{ENOUGH_TO_OSCILLATE} finite samples that differ are needed")
    cosine = known(numbers.direction_cosine[layer], NO_DIRECTIONS)
    unjudged = isinstance(z, Missing) and isinstance(cosine, Missing)
    return record_of(
        seeds.FlowCharacteristics,
        consistency_score=known(numbers.consistency[layer], why),
        smoothness_index=known(numbers.smoothness[layer], why),
        trend_strength=known(np.minimum(1.0, abs(numbers.slope[layer])), why),
        oscillation_frequency=known(numbers.turn_share[layer], why),
        stability_measure=known(numbers.stability[layer], why),
        oscillation_z=z,
        is_oscillating=Missing(z) if unjudged else oscillating,
        direction_cosine=cosine,
    )


def _why_missing(numbers: LayerNumbers, layer: int) -> str:
    if not numbers.count[layer]:
        return "no samples"
    if numbers.nonfinite_count[layer]:
        return f"{int(numbers.nonfinite_count[layer])} samples are not finite"
    return "every sample is zero" if numbers.largest[layer] == 0 else "too few samples"


def _metrics(
    numbers: LayerNumbers, verdicts: LayerVerdicts, layer: int, activity: float | None, window: int
) -> seeds.LayerHealthMetrics:
    why, missing = _why_missing(numbers, layer), window - int(numbers.count[layer])
    short = f"{missing} more samples are needed" if missing > 0 else "zero or non-finite samples in the window"
    return record_of(
        seeds.LayerHealthMetrics,
        overall_health=verdicts.health[layer],
        gradient_stability=known(numbers.stability[layer], why),
        information_flow_rate=known(numbers.flow_rate[layer], why),
        neuron_activity_ratio=Missing("activations were not given") if activity is None else activity,
        convergence_indicator=known(numbers.convergence[layer], short),
        risk_factors=verdicts.risk_factors[layer],
    )
