"""What is wrong with each layer, how well that leaves it, and what would help."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from undertow.analyze.layer_numbers import LayerNumbers
from undertow.analyze.series import Flags, Floats, LayerSeries
from undertow.analyze.topology import Topology
from undertow.components.flow_network import dead_layers
from undertow.components.gradient_stability import UNSTABLE
from undertow.components.problem_regions import severity_level
from undertow.components.regions import (
    PERSISTENCE,
    VANISHING_NORM,
    Extremes,
    recent_regions,
)
from undertow.schema.seeds.enhanced import ImplementationComplexity, LayerOptimizationSuggestion, SuggestionType
from undertow.schema.seeds.history import LayerHealth

FEW = 3  # finite samples below which nothing is said
RECENT = 50
FAR_OFF = 3.0  # decades from the network's median
SOME_ZEROS = (0.05, 0.5)
ROUNDING_SHARE = 1e-6


class Risk(StrEnum):
    """Findings about one layer; the sentences of `risk_factors` start with these."""

    NONFINITE = "non-finite gradient"
    DEAD = "dead: no gradient arrives"
    VANISHING = "vanishing gradient"
    EXPLODING = "exploding gradient"
    OSCILLATING = "oscillating gradient norm"
    UNSTABLE = "unstable gradient norm"
    INTERMITTENT = "gradient exactly zero in some samples"
    OFF_SCALE = "gradient scale far from the network's"
    CANCELLED = "gradient reaches the module but cancels in this parameter"


@dataclass(frozen=True, slots=True)
class LayerRisks:
    """The findings of every layer with their weight, 0 mild … 3 critical; and facts the advice depends on."""

    found: list[dict[Risk, int]]
    health: list[LayerHealth]
    dead: Flags
    since_start: list[bool]
    joined: list[bool]  # vanishing together with a neighbour in the graph


_WEIGHT = {
    Risk.NONFINITE: 3,
    Risk.DEAD: 3,
    Risk.OSCILLATING: 1,
    Risk.UNSTABLE: 1,
    Risk.INTERMITTENT: 0,
    Risk.OFF_SCALE: 0,
    Risk.CANCELLED: 0,
}


def assess_layers(
    series: LayerSeries, numbers: LayerNumbers, extremes: Extremes, topology: Topology | None
) -> LayerRisks:
    count = len(series.names)
    found: list[dict[Risk, int]] = [{} for _ in range(count)]
    since_start, joined = [False] * count, [False] * count
    cancelled = cancelled_layers(series, numbers.median)
    dead = dead_layers(series) & ~cancelled
    for risk, flags, decades, persistence in (
        (Risk.VANISHING, extremes.vanishing, extremes.decades_below, PERSISTENCE),
        (Risk.EXPLODING, extremes.exploding, extremes.decades_above, (1, 1)),
    ):
        regions = recent_regions(
            series, flags, decades, persistence=persistence, window=RECENT, current_step=None, topology=topology
        )
        for region in regions:
            for layer in region.layers:
                found[layer][risk] = severity_level(float(decades[layer]))
                since_start[layer] = region.start_step <= int(series.steps[0])
                joined[layer] = len(region.layers) > 1
    _add(found, Risk.NONFINITE, numbers.nonfinite_count > 0)
    _add(found, Risk.DEAD, dead)
    _add(found, Risk.OSCILLATING, numbers.oscillating)
    _add(found, Risk.UNSTABLE, numbers.stability < UNSTABLE)
    _add(found, Risk.INTERMITTENT, (numbers.zero_share > SOME_ZEROS[0]) & (numbers.zero_share <= SOME_ZEROS[1]))
    _add(found, Risk.OFF_SCALE, _off_scale(numbers.mean))
    _add(found, Risk.CANCELLED, cancelled)
    for layer, risks in enumerate(found):
        if Risk.DEAD in risks:
            risks.pop(Risk.VANISHING, None)  # said more precisely
        if Risk.CANCELLED in risks:
            _drop(risks, Risk.VANISHING, Risk.OFF_SCALE, Risk.UNSTABLE, Risk.OSCILLATING)
        if Risk.INTERMITTENT in risks and numbers.median[layer] >= VANISHING_NORM:
            _drop(risks, Risk.VANISHING, Risk.UNSTABLE)  # the zeros explain both
    health = [_health(risks, int(numbers.finite_count[layer])) for layer, risks in enumerate(found)]
    return LayerRisks(found, health, dead, since_start, joined)


def _drop(risks: dict[Risk, int], *explained: Risk) -> None:
    for risk in explained:
        risks.pop(risk, None)


def cancelled_layers(series: LayerSeries, median: Floats) -> Flags:
    """Not zero, but rounding noise beside the other parameters of the same module.

    So it is with a bias in front of a normalisation, or of the keys of attention: nothing is wrong with them.
    """
    modules: dict[str, list[int]] = {}
    for layer, name in enumerate(series.names):
        modules.setdefault(name.rpartition(".")[0], []).append(layer)
    flags = np.zeros(len(median), bool)
    for path, layers in modules.items():
        if path and len(layers) > 1:
            part = np.nan_to_num(median[layers])
            flags[layers] = (part > 0) & (part < ROUNDING_SHARE * part.max())
    return flags


def _add(found: list[dict[Risk, int]], risk: Risk, flags: Flags) -> None:
    for layer in np.flatnonzero(flags):
        found[int(layer)][risk] = _WEIGHT[risk]


def _off_scale(mean: Floats) -> Flags:
    positive = mean > 0
    if positive.sum() < FEW:
        return np.zeros(len(mean), bool)
    logarithm = np.log10(np.where(positive, mean, 1))
    return positive & (np.abs(logarithm - np.median(logarithm[positive])) > FAR_OFF)


def _health(risks: dict[Risk, int], finite: int) -> LayerHealth:
    """The worst finding decides; non-finite is never unknown."""
    if Risk.NONFINITE in risks:
        return LayerHealth.CRITICAL
    if finite < FEW:
        return LayerHealth.UNKNOWN
    worst = max((weight for weight in risks.values() if weight > 0), default=None)
    if worst is None and not {Risk.VANISHING, Risk.EXPLODING} & set(risks):
        return LayerHealth.HEALTHY
    return LayerHealth.CRITICAL if (worst or 0) >= 2 else LayerHealth.WARNING


def network_health(layers: list[LayerHealth]) -> LayerHealth:
    """That of the worst layer; unknown when nothing is known of any."""
    known = [health for health in layers if health is not LayerHealth.UNKNOWN]
    order = (LayerHealth.CRITICAL, LayerHealth.WARNING, LayerHealth.HEALTHY)
    return next((health for health in order if health in known), LayerHealth.UNKNOWN)


def suggestions(
    risks: dict[Risk, int], since_start: bool, joined: bool, overfits: bool
) -> list[LayerOptimizationSuggestion]:
    """Advice whose cause was seen. What it would gain is not known until it is tried."""
    advice: list[LayerOptimizationSuggestion] = []

    def add(kind: SuggestionType, what: str, why: str, complexity: ImplementationComplexity, side_effect: str) -> None:
        advice.append(LayerOptimizationSuggestion(kind, what, why, None, complexity, [side_effect]))

    sized = Risk.VANISHING in risks or Risk.EXPLODING in risks
    if sized and since_start:
        add(
            SuggestionType.WEIGHT_INITIALIZATION,
            "Initialise this layer anew with a variance-preserving scheme.",
            "The gradient was out of range from the first sample on.",
            ImplementationComplexity.REQUIRES_RETRAINING,
            "Training starts over.",
        )
    if (Risk.EXPLODING in risks and not since_start) or Risk.OSCILLATING in risks:
        add(
            SuggestionType.LEARNING_RATE_ADJUSTMENT,
            "Lower the learning rate of this layer.",
            "The gradient left its range, or began to swing, while training.",
            ImplementationComplexity.SIMPLE,
            "Training slows down.",
        )
    if Risk.VANISHING in risks and joined:
        add(
            SuggestionType.ARCHITECTURAL_MODIFICATION,
            "Add a skip connection around these layers.",
            "Several layers in a row lose the gradient together.",
            ImplementationComplexity.COMPLEX,
            "Checkpoints of the old architecture no longer fit.",
        )
    if Risk.UNSTABLE in risks and Risk.OSCILLATING not in risks:
        add(
            SuggestionType.OPTIMIZATION_ALGORITHM,
            "Clip gradients, or use an optimizer that adapts to their size.",
            "The norm jumps by more than its own size without a rhythm.",
            ImplementationComplexity.MODERATE,
            "Large but true gradients are cut as well.",
        )
    if Risk.OFF_SCALE in risks:
        add(
            SuggestionType.BATCH_NORMALIZATION,
            "Normalise the input of this layer.",
            "Its gradient is a thousand times from the network's median.",
            ImplementationComplexity.COMPLEX,
            "Behaviour differs between training and evaluation.",
        )
    if Risk.INTERMITTENT in risks:
        add(
            SuggestionType.DROPOUT_ADJUSTMENT,
            "Lower the dropout, or the gating, in front of this layer.",
            "Its gradient is exactly zero in some samples and alive in others.",
            ImplementationComplexity.SIMPLE,
            "Less regularisation.",
        )
    if overfits:
        add(
            SuggestionType.REGULARIZATION_ADD,
            "Add weight decay or dropout here first.",
            "The validation loss rises while the training loss does not, and this layer holds most parameters.",
            ImplementationComplexity.MODERATE,
            "The training loss gets worse.",
        )
    return advice  # fmt: skip
