"""Weights and gradients of plain arrays: distribution, health, outliers, explosions, drift."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from undertow.analyze.array_statistics import array_statistics, expected_outliers, outliers, pooled, scaled_norm
from undertow.analyze.run_series import RunNumbers
from undertow.checkpoints import open_checkpoint
from undertow.components.checkpoint_issues import drift_level
from undertow.components.explosion import explosion_analysis
from undertow.components.given_tensors import gradients, named_arrays, named_tensors
from undertow.components.recorded_distribution import recorded_statistics
from undertow.components.run_weights import NOT_RECORDED
from undertow.schema import seeds
from undertow.schema.reasons import Missing, record_of
from undertow.schema.seeds.arrays import Floats, InputError, as_array

SEVERE_OUTLIER = 5.0
OUTLIERS_LISTED = 100  # per tensor; all are counted
NO_ELEMENTS = Missing("the tensor has no elements")

# When a tensor has the issue, what that costs of a score of 100, the sentence, and the advice.
ISSUES: dict[seeds.WeightIssue, tuple[Callable[[seeds.WeightStatistics], bool], int, str, str]] = {
    seeds.WeightIssue.NONFINITE: (
        lambda tensor: tensor.nonfinite_count > 0, 100,
        "Non-finite weights: {tensor.nonfinite_count} of {total} elements are NaN or infinite",
        "Go back to a checkpoint without NaN or infinite weights and find the step that produced them"),
    seeds.WeightIssue.ZEROS: (
        lambda tensor: _size(tensor.zero_fraction) > 0.5, 30,
        "Many zero weights: {tensor.zero_fraction:.1%} are exactly zero (dead neurons, or pruning)",
        "If it is not pruned on purpose, check the learning rate and the activation function for dead units"),
    seeds.WeightIssue.SKEWED: (
        lambda tensor: _size(tensor.skewness) > 2, 15,
        "Skewed weights: skewness {tensor.skewness:.2f}",
        "Consider weight normalisation or another initialisation"),
    seeds.WeightIssue.HEAVY_TAILED: (
        lambda tensor: (tensor.kurtosis or 0.0) > 10, 15,
        "Heavy-tailed weights: excess kurtosis {tensor.kurtosis:.2f}",
        "Watch the few large weights: they make training unstable and quantisation coarse"),
    seeds.WeightIssue.EXTREME: (
        lambda tensor: max(_size(tensor.max), _size(tensor.min)) > 10, 20,
        "Extreme weights: from {tensor.min:.3g} to {tensor.max:.3g}",
        "Consider weight decay, or clipping of weights or gradients"),
}  # fmt: skip
_STATUS = ((90, seeds.DistributionHealthStatus.EXCELLENT), (75, seeds.DistributionHealthStatus.GOOD),
           (60, seeds.DistributionHealthStatus.FAIR), (40, seeds.DistributionHealthStatus.POOR))  # fmt: skip


class WeightAnalyzer:
    """Stateless. Tensors come as a module, its named parameters, a state dict or any mapping of names to arrays, a list
    of arrays (names beside it, or numbered), or one array of any shape.
    """

    @staticmethod
    def compute_l2_norm(array: Any) -> float:
        return scaled_norm(as_array(array, "array").reshape(-1))

    @staticmethod
    def from_checkpoint(source: Any) -> seeds.WeightDistributionAnalysis:
        """`analyze_weight_distribution` of a checkpoint file or folder, a torch module or a mapping, all of it in
        memory at a time; `undertow.weights` reads one tensor after the other, and says more."""
        entries = open_checkpoint(source).entries
        loaded = {entry.path: entry.load() for entry in entries}
        return WeightAnalyzer.analyze_weight_distribution(
            {path: elements.widen(elements.raw).astype(np.float64) for path, elements in loaded.items()}
        )

    @staticmethod
    def from_run(run: RunNumbers) -> seeds.WeightDistributionAnalysis:
        """The same of the weights of a run (`undertow.open_run`) when last measured, from the moments it recorded: it
        has neither entropies nor single outliers, and `unavailable` says so."""
        if not hasattr(run, "matrix"):
            raise InputError(
                f"the run is a {type(run).__name__}", way_out="Give what `undertow.open_run(path)` returns"
            )
        named, overall = recorded_statistics(run)
        return record_of(
            seeds.WeightDistributionAnalysis,
            layer_analyses=[_layer(place, name, one) for place, (name, one) in enumerate(named)],
            overall_statistics=overall,
            distribution_health=_health(overall),
            outlier_detection=[],
            outlier_counts=[],
            statistics_by_kind={},
            unavailable=dict.fromkeys(("outlier_detection", "outlier_counts", "statistics_by_kind"), NOT_RECORDED),
        )

    @staticmethod
    def analyze_weight_distribution(
        arrays: Any, names: Iterable[str] | None = None
    ) -> seeds.WeightDistributionAnalysis:
        labels, values = named_arrays(arrays, names)
        statistics = [array_statistics(value) for value in values]
        layers = [_layer(place, labels[place], part) for place, part in enumerate(statistics)]
        listed: list[seeds.WeightOutlier] = []
        counts: list[seeds.OutlierCount] = []
        for place, (value, part) in enumerate(zip(values, statistics)):
            found, count = outliers(value, part, OUTLIERS_LISTED)
            for index, z in found:
                severity = seeds.OutlierSeverity.HIGH if z > SEVERE_OUTLIER else seeds.OutlierSeverity.MEDIUM
                listed.append(seeds.WeightOutlier(place, index, float(value[index]), z, severity, labels[place]))
            counts.append(seeds.OutlierCount(place, labels[place], count, expected_outliers(part.count), len(found)))
        overall = pooled(statistics, values)
        return record_of(
            seeds.WeightDistributionAnalysis,
            layer_analyses=layers,
            overall_statistics=overall,
            distribution_health=_health(overall),
            outlier_detection=listed,
            outlier_counts=counts,
            statistics_by_kind=_by_kind(labels, statistics, values),
        )

    @staticmethod
    def detect_gradient_explosion(
        arrays: Any, threshold: float, names: Iterable[str] | None = None
    ) -> seeds.GradientExplosionAnalysis:
        """Which gradients are larger than `threshold`, and how far above it and above the others.

        Of a module, and of parameters, the gradients are taken; parameters without one are left out.
        """
        present = [(name, one) for name, one in gradients(named_tensors(arrays, names)) if one is not None]
        labels, values = named_arrays(dict(present))
        if not (isinstance(threshold, int | float) and threshold > 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"threshold is {threshold!r}, expected a number above 0")
        norms = [scaled_norm(value) for value in values]
        nonfinite = [int(value.size - np.isfinite(value).sum()) for value in values]
        return explosion_analysis(labels, norms, nonfinite, float(threshold))

    @staticmethod
    def assess_weight_health(array: Any, name: str = "array") -> seeds.WeightHealth:
        """Score, issues and advice for one tensor."""
        layer = _layer(0, name, array_statistics(as_array(array, name).reshape(-1)))
        score = NO_ELEMENTS if layer.health_score is None else layer.health_score
        return record_of(seeds.WeightHealth, score=score, issues=layer.issues, recommendations=layer.recommendations)

    @staticmethod
    def analyze_weight_drift(before: Any, after: Any, names: Iterable[str] | None = None) -> seeds.WeightDriftAnalysis:
        """How far weights moved: ‖after − before‖ / ‖before‖ per tensor, and for all of them together."""
        labels, old = named_arrays(before, names)
        after_labels, new = named_arrays(after, names if names is None else labels)
        if labels != after_labels:
            raise InputError(f"the tensors differ: {labels[:3]} … before, {after_labels[:3]} … after")
        return _drift(labels, old, new)


def _layer(place: int, name: str, tensor: seeds.WeightStatistics) -> seeds.LayerWeightAnalysis:
    kinds = [kind for kind, (applies, *_) in ISSUES.items() if applies(tensor)]
    total = tensor.count + tensor.nonfinite_count
    return record_of(
        seeds.LayerWeightAnalysis,
        layer_index=place,
        statistics=tensor,
        health_score=max(0.0, 100.0 - sum(ISSUES[kind][1] for kind in kinds)) if total else NO_ELEMENTS,
        issues=[ISSUES[kind][2].format(tensor=tensor, total=total) for kind in kinds],
        recommendations=[ISSUES[kind][3] for kind in kinds],
        layer_name=name,
        kinds_of_issue=kinds,
    )


def _health(overall: seeds.WeightStatistics) -> seeds.DistributionHealth | Missing:
    if not (overall.count or overall.nonfinite_count):
        return Missing("no elements were given")
    score = 100.0 - 25 * (_size(overall.zero_fraction) > 0.3)
    score -= 15 * (_size(overall.skewness) > 1) + 15 * ((overall.kurtosis or 0.0) > 5)
    score -= 20 * (_size(overall.max) > 5 or _size(overall.min) > 5)
    score = 0.0 if overall.nonfinite_count else score
    status = next((status for limit, status in _STATUS if score >= limit), seeds.DistributionHealthStatus.CRITICAL)
    return seeds.DistributionHealth(score, status)


def _size(value: float | None) -> float:
    """0 where there is no number: without elements, nothing is large."""
    return abs(value or 0.0)


def _by_kind(
    names: list[str], statistics: list[seeds.WeightStatistics], values: list[Floats]
) -> dict[str, seeds.WeightStatistics]:
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


def _drift(names: list[str], before: list[Floats], after: list[Floats]) -> seeds.WeightDriftAnalysis:
    drifts: list[float | None] = [None] * len(names)
    cosines: list[float | None] = [None] * len(names)
    unavailable: dict[str, str] = {}
    sizes, changes = np.zeros(len(names)), np.zeros(len(names))
    for place, (name, old, new) in enumerate(zip(names, before, after)):
        if old.shape != new.shape:
            raise InputError(f"layer {name!r}: {old.size} elements before, {new.size} after")
        if not (np.isfinite(old).all() and np.isfinite(new).all()):
            unavailable |= dict.fromkeys((name, "layer_drifts", "cosines"), "not all weights are finite")
            continue
        size, change, end = scaled_norm(old), scaled_norm(new - old), scaled_norm(new)
        if size > 0 or change == 0:
            drifts[place] = change / (size or 1.0)
        else:
            unavailable |= dict.fromkeys((name, "layer_drifts"), "the weights were all zero before")
        if size > 0 and end > 0:
            cosines[place] = float(old / size @ (new / end))
        else:
            unavailable["cosines"] = "a tensor of zeros has no direction"
        sizes[place], changes[place] = size, change
    whole = scaled_norm(sizes)
    mean = scaled_norm(changes) / whole if whole > 0 else None
    nothing = Missing("no finite, non-zero weights before")
    far = [place for place, drift in enumerate(drifts) if drift is not None and mean and drift > 2 * mean]
    return record_of(
        seeds.WeightDriftAnalysis,
        mean_drift=nothing if mean is None else mean,
        max_drift=max((drift for drift in drifts if drift is not None), default=nothing),
        severity=nothing if mean is None else drift_level(mean),
        affected_layers=far,
        layer_drifts=drifts,
        cosines=cosines,
        unavailable=unavailable,
    )
