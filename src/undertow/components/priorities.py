"""What to look at first: layers, groups of layers, or the whole network."""

from __future__ import annotations

import numpy as np

from undertow.analyze.layer_numbers import LayerNumbers
from undertow.analyze.series import LayerSeries
from undertow.components.layer_health import LayerRisks, Risk
from undertow.schema.seeds.dynamics import ConvergenceTrend, LearningPhase
from undertow.schema.seeds.enhanced import (
    ActionType,
    ImplementationEffort,
    OptimizationPriority,
    OptimizationTarget,
    PrioritizedAction,
    UrgencyLevel,
)
from undertow.schema.seeds.history import LayerHealth

_HEALTH_SHARE = {
    LayerHealth.CRITICAL: 1.0,
    LayerHealth.WARNING: 0.7,
    LayerHealth.UNKNOWN: 0.5,
    LayerHealth.HEALTHY: 0.3,
}
_ILL = (LayerHealth.CRITICAL, LayerHealth.WARNING)
MAJORITY = 0.5


def optimization_priorities(
    series: LayerSeries,
    numbers: LayerNumbers,
    risks: LayerRisks,
    potentials: list[float | None],
    groups: dict[str, list[int]],
    trend: ConvergenceTrend,
    phase: LearningPhase | None,
) -> list[OptimizationPriority]:
    """Every layer; groups and the network when most of their layers are ill; highest score first."""
    rates = _rate_ranks(numbers)
    layers = [
        _layer(series.names[layer], risks, layer, numbers, potentials[layer], float(rates[layer]))
        for layer in range(len(series.names))
    ]
    found = list(layers)
    for name, members in groups.items():
        if len(members) >= 2 and _ill_share(risks, members) > MAJORITY:
            found.append(_several(name, OptimizationTarget.LAYER_GROUP, members, layers, risks))
    everyone = list(range(len(layers)))
    if (len(everyone) >= 2 and _ill_share(risks, everyone) > MAJORITY) or _global(trend, phase):
        found.append(_network(everyone, layers, risks, trend, phase))
    return sorted(found, key=lambda item: (-item.priority_score, item.target_type, item.target_name))


def _rate_ranks(numbers: LayerNumbers) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Place of each layer's relative restlessness among all, 0 … 1; 0 where it is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = numbers.flow_rate / numbers.mean
    known = np.isfinite(rate)
    ranks = np.zeros(len(rate))
    if known.sum() > 1:
        order = np.sort(rate[known])
        ranks[known] = np.searchsorted(order, rate[known]) / (known.sum() - 1)
    return ranks


def _layer(
    name: str, risks: LayerRisks, layer: int, numbers: LayerNumbers, potential: float | None, rate: float
) -> OptimizationPriority:
    """0.4 health + 0.3 instability + 0.2 potential + 0.1 rank of restlessness: never above 1."""
    health = risks.health[layer]
    stability = float(numbers.stability[layer])
    lost = Risk.NONFINITE in risks.found[layer] or Risk.DEAD in risks.found[layer]
    shaky = 1.0 if lost else 1 - stability
    score = 0.4 * _HEALTH_SHARE[health] + 0.3 * np.nan_to_num(shaky) + 0.2 * (potential or 0.0) + 0.1 * rate
    return OptimizationPriority(
        target_name=name,
        target_type=OptimizationTarget.INDIVIDUAL_LAYER,
        priority_score=min(1.0, float(score)),
        urgency_level=_urgency(health, stability),
        optimization_potential=potential,
        recommended_actions=_layer_actions(risks.found[layer], risks.since_start[layer], risks.joined[layer]),
    )


def _urgency(health: LayerHealth, stability: float) -> UrgencyLevel:
    if health is LayerHealth.CRITICAL:
        return UrgencyLevel.CRITICAL
    if health is LayerHealth.WARNING:
        return UrgencyLevel.HIGH if stability < 0.3 else UrgencyLevel.MEDIUM
    return UrgencyLevel.LOW if health is LayerHealth.HEALTHY else UrgencyLevel.MEDIUM


def _layer_actions(risks: dict[Risk, int], since_start: bool, joined: bool) -> list[PrioritizedAction]:
    actions: list[PrioritizedAction] = []
    if Risk.NONFINITE in risks:
        actions.append(PrioritizedAction("Find the operation that produces non-finite values",
            ActionType.PARAMETER_ADJUSTMENT, None, ImplementationEffort.MODERATE, []))  # fmt: skip
    if Risk.DEAD in risks:
        actions.append(PrioritizedAction("Reconnect the layer to the loss, or remove it",
            ActionType.ARCHITECTURAL_CHANGE, None, ImplementationEffort.HIGH, ["Know what cuts it off"]))  # fmt: skip
    if (Risk.VANISHING in risks or Risk.EXPLODING in risks) and since_start:
        actions.append(PrioritizedAction("Initialise anew",
            ActionType.PARAMETER_ADJUSTMENT, None, ImplementationEffort.MODERATE, ["Restart training"]))  # fmt: skip
    if Risk.VANISHING in risks and joined:
        actions.append(PrioritizedAction("Add a skip connection",
            ActionType.ARCHITECTURAL_CHANGE, None, ImplementationEffort.HIGH, ["Restart training"]))  # fmt: skip
    if Risk.EXPLODING in risks or Risk.OSCILLATING in risks:
        actions.append(PrioritizedAction("Lower the learning rate",
            ActionType.LEARNING_RATE_SCHEDULING, None, ImplementationEffort.MINIMAL, []))  # fmt: skip
    if Risk.EXPLODING in risks or Risk.UNSTABLE in risks:
        actions.append(PrioritizedAction("Clip the gradient norm",
            ActionType.OPTIMIZATION_TECHNIQUE, None, ImplementationEffort.LOW, ["Know the usual norm"]))  # fmt: skip
    return actions


def _ill_share(risks: LayerRisks, members: list[int]) -> float:
    return sum(risks.health[layer] in _ILL for layer in members) / max(1, len(members))


def _several(
    name: str, target: OptimizationTarget, members: list[int], layers: list[OptimizationPriority], risks: LayerRisks
) -> OptimizationPriority:
    """The members' worst score and urgency, and the actions that more than one of them needs."""
    times: dict[str, int] = {}
    first: dict[str, PrioritizedAction] = {}
    for layer in members:
        for action in layers[layer].recommended_actions:
            times[action.action_name] = times.get(action.action_name, 0) + 1
            first.setdefault(action.action_name, action)
    potentials = [value for layer in members if (value := layers[layer].optimization_potential) is not None]
    order = list(UrgencyLevel)
    return OptimizationPriority(
        target_name=name,
        target_type=target,
        priority_score=max(layers[layer].priority_score for layer in members) * _ill_share(risks, members),
        urgency_level=max((layers[layer].urgency_level for layer in members), key=order.index),
        optimization_potential=float(np.mean(potentials)) if potentials else None,
        recommended_actions=[first[action] for action, count in times.items() if count >= 2],
    )


def _global(trend: ConvergenceTrend, phase: LearningPhase | None) -> bool:
    return trend in (ConvergenceTrend.DIVERGING, ConvergenceTrend.OSCILLATING) or phase is LearningPhase.OVERFITTING


def _network(
    members: list[int],
    layers: list[OptimizationPriority],
    risks: LayerRisks,
    trend: ConvergenceTrend,
    phase: LearningPhase | None,
) -> OptimizationPriority:
    actions: list[PrioritizedAction] = []
    if trend in (ConvergenceTrend.DIVERGING, ConvergenceTrend.OSCILLATING):
        actions.append(PrioritizedAction("Lower the learning rate of the whole network",
            ActionType.LEARNING_RATE_SCHEDULING, None, ImplementationEffort.MINIMAL, []))  # fmt: skip
    if phase is LearningPhase.OVERFITTING:
        actions.append(PrioritizedAction("Add weight decay or dropout",
            ActionType.REGULARIZATION_METHOD, None, ImplementationEffort.LOW, ["Keep the best one"]))  # fmt: skip
    starving = sum(Risk.VANISHING in found or Risk.DEAD in found for found in risks.found)
    if starving > MAJORITY * len(members) > 0:
        actions.append(PrioritizedAction("Redesign the depth of the network: residual paths, normalisation",
            ActionType.ARCHITECTURAL_CHANGE, None, ImplementationEffort.EXTENSIVE, ["Restart training"]))  # fmt: skip
    if not members:
        urgency, score, potential = UrgencyLevel.HIGH, 0.7, None
    else:
        whole = _several("network", OptimizationTarget.NETWORK_LEVEL, members, layers, risks)
        actions += [action for action in whole.recommended_actions if action not in actions]
        urgency, score, potential = whole.urgency_level, whole.priority_score, whole.optimization_potential
    if _global(trend, phase):
        score = max(score, _HEALTH_SHARE[LayerHealth.WARNING])
        urgency = max(urgency, UrgencyLevel.HIGH, key=list(UrgencyLevel).index)
    return OptimizationPriority("network", OptimizationTarget.NETWORK_LEVEL, score, urgency, potential, actions)
