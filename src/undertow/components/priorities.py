"""What to look at first: layers, groups of layers, or the whole network."""

import numpy as np

from undertow.analyze.layer_numbers import LayerNumbers
from undertow.analyze.series import Floats, LayerSeries
from undertow.components.layer_health import UNTRIED_ACTION, LayerVerdicts
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
ILL = (LayerHealth.CRITICAL, LayerHealth.WARNING)
MAJORITY = 0.5
_NO_POTENTIAL = {"optimization_potential": "there is no other layer with gradient to compare with"}


def optimization_priorities(
    series: LayerSeries,
    numbers: LayerNumbers,
    verdicts: LayerVerdicts,
    potentials: list[float | None],
    groups: dict[str, list[int]],
) -> list[OptimizationPriority]:
    """Every layer; groups and the network when most of their layers are ill; highest score first."""
    layers = _layers(series, numbers, verdicts, potentials)
    found = list(layers)
    for name, members in groups.items():
        if len(members) >= 2 and _ill_share(verdicts, members) > MAJORITY:
            found.append(_several(name, OptimizationTarget.LAYER_GROUP, members, layers, verdicts))
    everyone = list(range(len(layers)))
    if (len(everyone) >= 2 and _ill_share(verdicts, everyone) > MAJORITY) or verdicts.network_actions:
        found.append(_network(everyone, layers, verdicts))
    return sorted(found, key=lambda item: (-item.priority_score, item.target_type, item.target_name))


def _rate_ranks(numbers: LayerNumbers) -> Floats:
    """Place of each layer's relative restlessness among all, 0 … 1; 0 where it is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = numbers.flow_rate / numbers.mean
    known = np.isfinite(rate)
    ranks = np.zeros(len(rate))
    if known.sum() > 1:
        ranks[known] = np.searchsorted(np.sort(rate[known]), rate[known]) / (known.sum() - 1)
    return ranks


def _layers(
    series: LayerSeries, numbers: LayerNumbers, verdicts: LayerVerdicts, potentials: list[float | None]
) -> list[OptimizationPriority]:
    """0.4 health + 0.3 instability + 0.2 potential + 0.1 rank of restlessness: never above 1."""
    health = np.array([_HEALTH_SHARE[health] for health in verdicts.health])
    shaky = np.where(verdicts.lost, 1.0, np.nan_to_num(1 - numbers.stability))
    potential = np.array([value or 0.0 for value in potentials])
    score = np.minimum(1.0, 0.4 * health + 0.3 * shaky + 0.2 * potential + 0.1 * _rate_ranks(numbers))
    return [
        OptimizationPriority(
            target_name=name,
            target_type=OptimizationTarget.INDIVIDUAL_LAYER,
            priority_score=float(score[layer]),
            urgency_level=_urgency(verdicts.health[layer], float(numbers.stability[layer])),
            optimization_potential=potentials[layer],
            recommended_actions=verdicts.actions[layer],
            unavailable={} if potentials[layer] is not None else dict(_NO_POTENTIAL),
        )
        for layer, name in enumerate(series.names)
    ]


def _urgency(health: LayerHealth, stability: float) -> UrgencyLevel:
    if health is LayerHealth.CRITICAL:
        return UrgencyLevel.CRITICAL
    if health is LayerHealth.WARNING:
        return UrgencyLevel.HIGH if stability < 0.3 else UrgencyLevel.MEDIUM
    return UrgencyLevel.LOW if health is LayerHealth.HEALTHY else UrgencyLevel.MEDIUM


def _ill_share(verdicts: LayerVerdicts, members: list[int]) -> float:
    return sum(verdicts.health[layer] in ILL for layer in members) / max(1, len(members))


def _several(
    name: str, target: OptimizationTarget, members: list[int], layers: list[OptimizationPriority],
    verdicts: LayerVerdicts,
) -> OptimizationPriority:  # fmt: skip
    """The members' worst score and urgency, and the actions that more than one of them needs."""
    times: dict[str, list[PrioritizedAction]] = {}
    for layer in members:
        for action in layers[layer].recommended_actions:
            times.setdefault(action.action_name, []).append(action)
    potentials = [value for layer in members if (value := layers[layer].optimization_potential) is not None]
    return OptimizationPriority(
        target_name=name,
        target_type=target,
        priority_score=max(layers[layer].priority_score for layer in members) * _ill_share(verdicts, members),
        urgency_level=max((layers[layer].urgency_level for layer in members), key=list(UrgencyLevel).index),
        optimization_potential=float(np.mean(potentials)) if potentials else None,
        recommended_actions=[same[0] for same in times.values() if len(same) >= 2],
        unavailable={} if potentials else dict(_NO_POTENTIAL),
    )


def network_actions(trend: ConvergenceTrend, phase: LearningPhase | None) -> list[PrioritizedAction]:
    """What a loss that diverges, oscillates or overfits calls for."""
    actions: list[PrioritizedAction] = []
    if trend in (ConvergenceTrend.DIVERGING, ConvergenceTrend.OSCILLATING):
        actions.append(PrioritizedAction("Lower the learning rate of the whole network",
            ActionType.LEARNING_RATE_SCHEDULING, None, ImplementationEffort.MINIMAL, [],
            dict(UNTRIED_ACTION)))  # fmt: skip
    if phase is LearningPhase.OVERFITTING:
        actions.append(PrioritizedAction("Add weight decay or dropout",
            ActionType.REGULARIZATION_METHOD, None, ImplementationEffort.LOW, ["Keep the best one"],
            dict(UNTRIED_ACTION)))  # fmt: skip
    return actions


def _network(members: list[int], layers: list[OptimizationPriority], verdicts: LayerVerdicts) -> OptimizationPriority:
    actions = list(verdicts.network_actions)
    if int(verdicts.starving.sum()) > MAJORITY * len(members) > 0:
        actions.append(PrioritizedAction("Redesign the depth of the network: residual paths, normalisation",
            ActionType.ARCHITECTURAL_CHANGE, None, ImplementationEffort.EXTENSIVE, ["Restart training"],
            dict(UNTRIED_ACTION)))  # fmt: skip
    urgency, score, potential = UrgencyLevel.HIGH, 0.7, None
    if members:
        whole = _several("network", OptimizationTarget.NETWORK_LEVEL, members, layers, verdicts)
        actions += [action for action in whole.recommended_actions if action not in actions]
        urgency, score, potential = whole.urgency_level, whole.priority_score, whole.optimization_potential
    if verdicts.network_actions:
        score = max(score, _HEALTH_SHARE[LayerHealth.WARNING])
        urgency = max(urgency, UrgencyLevel.HIGH, key=list(UrgencyLevel).index)
    reasons = {} if potential is not None else dict(_NO_POTENTIAL)
    return OptimizationPriority(
        "network", OptimizationTarget.NETWORK_LEVEL, score, urgency, potential, actions, reasons
    )
