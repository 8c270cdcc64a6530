"""Weights and gradients of plain arrays: distribution, health, outliers, explosions, drift."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from undertow.analyze.array_statistics import array_statistics, expected_outliers, outliers, pooled, scaled_norm
from undertow.components.checkpoint_issues import drift_level
from undertow.components.explosion import explosion_analysis
from undertow.schema.seeds.arrays import Floats, InputError, as_array
from undertow.schema.seeds.weight_records import (
    DistributionHealth,
    DistributionHealthStatus,
    GradientExplosionAnalysis,
    LayerWeightAnalysis,
    OutlierCount,
    OutlierSeverity,
    WeightDistributionAnalysis,
    WeightDriftAnalysis,
    WeightHealth,
    WeightIssue,
    WeightOutlier,
    WeightStatistics,
)

SEVERE_OUTLIER = 5.0
OUTLIERS_LISTED = 100  # per tensor; all are counted

_SENTENCES = {
    WeightIssue.NONFINITE: (
        "Non-finite weights: {nonfinite} of {total} elements are NaN or infinite",
        "Go back to a checkpoint without NaN or infinite weights and find the step that produced them",
    ),
    WeightIssue.ZEROS: (
        "Many zero weights: {zeros:.1%} are exactly zero (dead neurons, or pruning)",
        "If it is not pruned on purpose, check the learning rate and the activation function for dead units",
    ),
    WeightIssue.SKEWED: (
        "Skewed weights: skewness {skewness:.2f}",
        "Consider weight normalisation or another initialisation",
    ),
    WeightIssue.HEAVY_TAILED: (
        "Heavy-tailed weights: excess kurtosis {kurtosis:.2f}",
        "Watch the few large weights: they make training unstable and quantisation coarse",
    ),
    WeightIssue.EXTREME: (
        "Extreme weights: from {low:.3g} to {high:.3g}",
        "Consider weight decay, or clipping of weights or gradients",
    ),
}


class WeightAnalyzer:
    """Stateless. Arrays come as a list (names beside it, or numbered) or as a mapping of names to arrays."""

    @staticmethod
    def compute_l2_norm(array: Any) -> float:
        return scaled_norm(as_array(array, "array").reshape(-1))

    @staticmethod
    def analyze_weight_distribution(arrays: Any, names: Iterable[str] | None = None) -> WeightDistributionAnalysis:
        labels, values = named_arrays(arrays, names)
        statistics = [array_statistics(value) for value in values]
        layers = [_layer(place, labels[place], part) for place, part in enumerate(statistics)]
        listed: list[WeightOutlier] = []
        counts: list[OutlierCount] = []
        for place, (value, part) in enumerate(zip(values, statistics)):
            found, count = outliers(value, part, OUTLIERS_LISTED)
            listed += [_outlier(place, labels[place], value, index, z) for index, z in found]
            counts.append(OutlierCount(place, labels[place], count, expected_outliers(part.count), len(found)))
        overall = pooled(statistics, values)
        return WeightDistributionAnalysis(
            layer_analyses=layers,
            overall_statistics=overall,
            distribution_health=_health(overall) if values else None,
            outlier_detection=listed,
            outlier_counts=counts,
            statistics_by_kind=_by_kind(labels, statistics, values),
            unavailable={} if values else {"distribution_health": "no tensors were given"},
        )

    @staticmethod
    def detect_gradient_explosion(
        arrays: Any, threshold: float, names: Iterable[str] | None = None
    ) -> GradientExplosionAnalysis:
        """Which gradients are larger than `threshold`, and how far above the median of all."""
        labels, values = named_arrays(arrays, names)
        if not threshold > 0:
            raise InputError(f"threshold is {threshold}, expected a number above 0")
        norms = [scaled_norm(value) for value in values]
        nonfinite = [int(value.size - np.isfinite(value).sum()) for value in values]
        return explosion_analysis(labels, norms, nonfinite, float(threshold))

    @staticmethod
    def assess_weight_health(array: Any, name: str = "array") -> WeightHealth:
        """Score, issues and advice for one tensor."""
        layer = _layer(0, name, array_statistics(as_array(array, name).reshape(-1)))
        return WeightHealth(layer.health_score, layer.issues, layer.recommendations)

    @staticmethod
    def analyze_weight_drift(before: Any, after: Any, names: Iterable[str] | None = None) -> WeightDriftAnalysis:
        """How far weights moved: ‖after − before‖ / ‖before‖ per tensor, and for all of them together."""
        labels, old = named_arrays(before, names)
        after_labels, new = named_arrays(after, names if names is None else labels)
        if labels != after_labels:
            raise InputError(f"the tensors differ: {labels[:3]} … before, {after_labels[:3]} … after")
        return _drift(labels, old, new)


def named_arrays(arrays: Any, names: Iterable[str] | None) -> tuple[list[str], list[Floats]]:
    if isinstance(arrays, Mapping):
        labels = [str(name) for name in arrays]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        items: list[Any] = list(arrays.values())  # pyright: ignore[reportUnknownArgumentType]
    else:
        items = list(arrays)
        labels = [f"tensor {place}" for place in range(len(items))] if names is None else [str(name) for name in names]
    if len(labels) != len(items):
        raise InputError(f"{len(items)} tensors but {len(labels)} names")
    if len(set(labels)) != len(labels):
        raise InputError(f"layer {next(name for name in labels if labels.count(name) > 1)!r} is given twice")
    return labels, [as_array(item, label).reshape(-1) for item, label in zip(items, labels)]


def _issues_of(statistics: WeightStatistics) -> list[WeightIssue]:
    found = [WeightIssue.NONFINITE] if statistics.nonfinite_count else []
    if statistics.zero_fraction > 0.5:
        found.append(WeightIssue.ZEROS)
    if abs(statistics.skewness) > 2:
        found.append(WeightIssue.SKEWED)
    if statistics.kurtosis > 10:
        found.append(WeightIssue.HEAVY_TAILED)
    if abs(statistics.max) > 10 or abs(statistics.min) > 10:
        found.append(WeightIssue.EXTREME)
    return found


def _layer_score(statistics: WeightStatistics) -> float:
    """100 less a fine per issue; 0 as soon as anything is not finite."""
    fines = {WeightIssue.ZEROS: 30, WeightIssue.SKEWED: 15, WeightIssue.HEAVY_TAILED: 15, WeightIssue.EXTREME: 20}
    issues = _issues_of(statistics)
    return 0.0 if WeightIssue.NONFINITE in issues else 100.0 - sum(fines[issue] for issue in issues)


def _distribution_score(overall: WeightStatistics) -> float:
    if overall.nonfinite_count:
        return 0.0
    score = 100.0 - 25 * (overall.zero_fraction > 0.3)
    score -= 15 * (abs(overall.skewness) > 1) + 15 * (overall.kurtosis > 5)
    return score - 20 * (abs(overall.max) > 5 or abs(overall.min) > 5)


def _layer(place: int, name: str, statistics: WeightStatistics) -> LayerWeightAnalysis:
    kinds = _issues_of(statistics)
    facts = {
        "nonfinite": statistics.nonfinite_count,
        "total": statistics.count + statistics.nonfinite_count,
        "zeros": statistics.zero_fraction,
        "skewness": statistics.skewness,
        "kurtosis": statistics.kurtosis,
        "low": statistics.min,
        "high": statistics.max,
    }
    return LayerWeightAnalysis(
        layer_index=place,
        statistics=statistics,
        health_score=_layer_score(statistics),
        issues=[_SENTENCES[kind][0].format(**facts) for kind in kinds],
        recommendations=[_SENTENCES[kind][1] for kind in kinds],
        layer_name=name,
        kinds_of_issue=kinds,
    )


def _outlier(place: int, name: str, values: Floats, index: int, z: float) -> WeightOutlier:
    severity = OutlierSeverity.HIGH if z > SEVERE_OUTLIER else OutlierSeverity.MEDIUM
    return WeightOutlier(place, index, float(values[index]), z, severity, name)


def _health(overall: WeightStatistics) -> DistributionHealth:
    score = _distribution_score(overall)
    limits = ((90, DistributionHealthStatus.EXCELLENT), (75, DistributionHealthStatus.GOOD),
              (60, DistributionHealthStatus.FAIR), (40, DistributionHealthStatus.POOR))  # fmt: skip
    status = next((status for limit, status in limits if score >= limit), DistributionHealthStatus.CRITICAL)
    return DistributionHealth(score, status)


def _by_kind(names: list[str], statistics: list[WeightStatistics], values: list[Floats]) -> dict[str, WeightStatistics]:
    """Pooled by what the last word of the name says: weights, biases and norm scales do not mix."""
    kinds: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        words = name.lower().split(".")
        norm = any("norm" in word or word.startswith(("ln", "bn")) for word in words[:-1])
        kind = "norm" if norm else "bias" if words[-1] == "bias" else "weight" if "weight" in words[-1] else "other"
        kinds.setdefault(kind, []).append(place)
    return {
        kind: pooled([statistics[place] for place in places], [values[place] for place in places])
        for kind, places in sorted(kinds.items())
    }


def _drift(names: list[str], before: list[Floats], after: list[Floats]) -> WeightDriftAnalysis:
    drifts: list[float | None] = []
    cosines: list[float | None] = []
    unavailable: dict[str, str] = {}
    moved, start = [0.0], [0.0]
    for name, old, new in zip(names, before, after):
        if old.shape != new.shape:
            raise InputError(f"layer {name!r}: {old.size} elements before, {new.size} after")
        if not (np.isfinite(old).all() and np.isfinite(new).all()):
            drifts.append(None)
            cosines.append(None)
            unavailable[name] = "not all weights are finite"
            continue
        size, change, end = scaled_norm(old), scaled_norm(new - old), scaled_norm(new)
        if size == 0 and change > 0:
            unavailable[name] = "the weights were all zero before"
        drifts.append(change / size if size > 0 else 0.0 if change == 0 else None)
        cosines.append(float(old / size @ (new / end)) if size > 0 and end > 0 else None)
        moved.append(change)
        start.append(size)
    known = [drift for drift in drifts if drift is not None]
    whole = scaled_norm(np.array(start))
    mean = scaled_norm(np.array(moved)) / whole if whole > 0 else None
    if mean is None:
        unavailable["mean_drift"] = "no finite, non-zero weights before"
    severity = None if mean is None else drift_level(mean)
    affected = [place for place, drift in enumerate(drifts) if drift is not None and mean and drift > 2 * mean]
    return WeightDriftAnalysis(mean, max(known, default=None), severity, affected, drifts, cosines, unavailable)
