"""What the original's limits say of each layer: its risks, its health, and what would help."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from undertow.analyze.layer_numbers import LayerNumbers
from undertow.analyze.series import Flags, Floats, LayerSeries
from undertow.analyze.topology import Topology
from undertow.components.flow_network import dead_layers
from undertow.components.gradient_stability import UNSTABLE
from undertow.components.regions import PERSISTENCE, VANISHING_NORM, Extremes, recent_regions, severity_level
from undertow.schema.seeds.enhanced import (
    ActionType,
    ImplementationComplexity,
    ImplementationEffort,
    LayerOptimizationSuggestion,
    PrioritizedAction,
    SuggestionType,
)
from undertow.schema.seeds.history import LayerHealth

FEW = 3  # finite samples below which nothing is said
RECENT = 50
FAR_OFF = 3.0  # decades from the network's median
SOME_ZEROS = (0.05, 0.5)
ROUNDING_SHARE = 1e-6
CRITICAL_SHARE, WARNING_SHARE = 0.3, 0.5  # of the layers, for the network


class Risk(StrEnum):
    """What may be wrong with a layer, as `risk_factors` says it; the last three only choose the advice."""

    NONFINITE = "non-finite gradient"
    DEAD = "dead: no gradient arrives"
    VANISHING = "vanishing gradient"
    EXPLODING = "exploding gradient"
    OSCILLATING = "oscillating gradient norm"
    UNSTABLE = "unstable gradient norm"
    INTERMITTENT = "gradient exactly zero in some samples"
    OFF_SCALE = "gradient scale far from the network's"
    CANCELLED = "gradient reaches the module but cancels in this parameter"
    FROM_START = "out of range from the first sample"
    JOINED = "a neighbour in the graph vanishes too"
    OVERFITTING = "the network overfits, and this layer holds most parameters"


_FACTS = (Risk.FROM_START, Risk.JOINED, Risk.OVERFITTING)
_LEVEL = {Risk.NONFINITE: 3, Risk.DEAD: 3, Risk.OSCILLATING: 1, Risk.UNSTABLE: 1}  # 0 mild … 3 critical


@dataclass(frozen=True, slots=True)
class LayerVerdicts:
    """One entry per layer. Plain arrays are judged here; a run by its findings (`run_verdicts`)."""

    health: list[LayerHealth]
    risk_factors: list[list[str]]
    suggestions: list[list[LayerOptimizationSuggestion]]
    actions: list[list[PrioritizedAction]]
    oscillating: Flags
    dead: Flags
    lost: Flags  # dead or not finite
    starving: Flags  # dead or vanishing
    network_health: LayerHealth = LayerHealth.UNKNOWN
    network_actions: list[PrioritizedAction] = field(default_factory=list[PrioritizedAction])


def assess_layers(
    series: LayerSeries, numbers: LayerNumbers, extremes: Extremes, topology: Topology | None, overfits: bool = False
) -> LayerVerdicts:
    found: list[dict[Risk, int]] = [{} for _ in series.names]
    cancelled = cancelled_layers(series, numbers.median)
    dead = dead_layers(series) & ~cancelled
    for risk, flags, decades, persistence in (
        (Risk.VANISHING, extremes.vanishing, extremes.decades_below, PERSISTENCE),
        (Risk.EXPLODING, extremes.exploding, extremes.decades_above, (1, 1)),
    ):
        window = {"persistence": persistence, "window": RECENT}
        for region in recent_regions(series, flags, decades, current_step=None, topology=topology, **window):
            for layer in region.layers:
                found[layer][risk] = severity_level(float(decades[layer]))
                from_start = region.start_step <= int(series.steps[0])
                for fact, holds in ((Risk.FROM_START, from_start), (Risk.JOINED, len(region.layers) > 1)):
                    found[layer].pop(fact, None)
                    if holds:
                        found[layer][fact] = 0
    some_zeros = (numbers.zero_share > SOME_ZEROS[0]) & (numbers.zero_share <= SOME_ZEROS[1])
    for risk, flags in (
        (Risk.NONFINITE, numbers.nonfinite_count > 0),
        (Risk.DEAD, dead),
        (Risk.OSCILLATING, numbers.oscillating),
        (Risk.UNSTABLE, numbers.stability < UNSTABLE),
        (Risk.INTERMITTENT, some_zeros),
        (Risk.OFF_SCALE, _off_scale(numbers.mean)),
        (Risk.CANCELLED, cancelled),
    ):
        for layer in np.flatnonzero(flags).tolist():
            found[layer][risk] = _LEVEL.get(risk, 0)
    for layer, risks in enumerate(found):
        _drop_explained(risks, float(numbers.median[layer]))
    if overfits and (series.sizes > 0).any():
        found[int(np.nanargmax(series.sizes))][Risk.OVERFITTING] = 0
    health = [_health(risks, int(numbers.finite_count[layer])) for layer, risks in enumerate(found)]
    return LayerVerdicts(
        health=health,
        risk_factors=[[str(risk) for risk in risks if risk not in _FACTS] for risks in found],
        suggestions=[
            [LayerOptimizationSuggestion(kind, what, why, None, complexity, [side_effect], dict(UNTRIED))
             for applies, kind, what, why, complexity, side_effect in SUGGESTIONS if applies(risks)]
            for risks in found
        ],
        actions=[
            [PrioritizedAction(what, kind, None, effort, list(needs), dict(UNTRIED_ACTION))
             for applies, what, kind, effort, needs in ACTIONS if applies(risks)]
            for risks in found
        ],
        oscillating=numbers.oscillating,
        dead=dead,
        lost=np.array([Risk.NONFINITE in risks or Risk.DEAD in risks for risks in found], bool),
        starving=np.array([Risk.VANISHING in risks or Risk.DEAD in risks for risks in found], bool),
        network_health=network_health(health, bool((numbers.nonfinite_count > 0).any())),
    )  # fmt: skip


def _drop_explained(risks: dict[Risk, int], median: float) -> None:
    explained: set[Risk] = set()
    if Risk.DEAD in risks:
        explained |= {Risk.VANISHING}  # said more precisely
    if Risk.CANCELLED in risks:
        explained |= {Risk.VANISHING, Risk.OFF_SCALE, Risk.UNSTABLE, Risk.OSCILLATING}
    if Risk.INTERMITTENT in risks and median >= VANISHING_NORM:
        explained |= {Risk.VANISHING, Risk.UNSTABLE}  # the zeros explain both
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


def _off_scale(mean: Floats) -> Flags:
    positive = mean > 0
    if positive.sum() < FEW:
        return np.zeros(len(mean), bool)
    logarithm = np.log10(np.where(positive, mean, 1))
    return positive & (np.abs(logarithm - np.median(logarithm[positive])) > FAR_OFF)


def _health(risks: dict[Risk, int], finite: int) -> LayerHealth:
    """The worst risk decides; non-finite is never unknown."""
    if Risk.NONFINITE in risks:
        return LayerHealth.CRITICAL
    if finite < FEW:
        return LayerHealth.UNKNOWN
    worst = max(risks.values(), default=0)
    if worst == 0 and not {Risk.VANISHING, Risk.EXPLODING} & set(risks):
        return LayerHealth.HEALTHY
    return LayerHealth.CRITICAL if worst >= 2 else LayerHealth.WARNING


def network_health(layers: list[LayerHealth], nonfinite: bool = False) -> LayerHealth:
    """By shares of the layers that are known: one of a thousand that is dead is a warning.

    NaN and infinity are critical wherever they are: they spread with the next step.
    """
    known = [health for health in layers if health is not LayerHealth.UNKNOWN]
    if not known:
        return LayerHealth.UNKNOWN
    critical, warning = (known.count(one) / len(known) for one in (LayerHealth.CRITICAL, LayerHealth.WARNING))
    if nonfinite or critical > CRITICAL_SHARE:
        return LayerHealth.CRITICAL
    return LayerHealth.WARNING if critical > 0 or warning > WARNING_SHARE else LayerHealth.HEALTHY


_Risks = dict[Risk, int]
_UNTRIED = "what it gains is not known until it is tried"
UNTRIED, UNTRIED_ACTION = {"expected_improvement": _UNTRIED}, {"expected_impact": _UNTRIED}


def _sized(risks: _Risks) -> bool:
    return Risk.VANISHING in risks or Risk.EXPLODING in risks


# Advice whose cause was seen. What it would gain is not known until it is tried.
SUGGESTIONS: tuple[tuple[Callable[[_Risks], bool], SuggestionType, str, str, ImplementationComplexity, str], ...] = (
    (lambda risks: Risk.NONFINITE in risks, SuggestionType.OPTIMIZATION_ALGORITHM,
     "Skip steps whose gradient is not finite, and find the operation that makes it so: a division, a logarithm, a "
     "loss scale that is too large.",
     "Some samples are NaN or infinite, and one such step spoils every weight of the layer.",
     ImplementationComplexity.MODERATE, "Skipped steps are lost."),
    (lambda risks: Risk.DEAD in risks, SuggestionType.ARCHITECTURAL_MODIFICATION,
     "Reconnect this layer to the loss, or remove it: look for a detached tensor, dead units in front of it, or a zero "
     "weight behind it.",
     "No gradient has arrived in any of the newest samples.",
     ImplementationComplexity.COMPLEX, "The network computes something else."),
    (lambda risks: _sized(risks) and Risk.FROM_START in risks, SuggestionType.WEIGHT_INITIALIZATION,
     "Initialise this layer anew with a variance-preserving scheme.",
     "The gradient was out of range from the first sample on.",
     ImplementationComplexity.REQUIRES_RETRAINING, "Training starts over."),
    (lambda risks: (Risk.EXPLODING in risks and Risk.FROM_START not in risks) or Risk.OSCILLATING in risks,
     SuggestionType.LEARNING_RATE_ADJUSTMENT, "Lower the learning rate of this layer.",
     "The gradient left its range, or began to swing, while training.",
     ImplementationComplexity.SIMPLE, "Training slows down."),
    (lambda risks: Risk.VANISHING in risks and Risk.JOINED in risks, SuggestionType.ARCHITECTURAL_MODIFICATION,
     "Add a skip connection around these layers.", "Several layers in a row lose the gradient together.",
     ImplementationComplexity.COMPLEX, "Checkpoints of the old architecture no longer fit."),
    (lambda risks: Risk.UNSTABLE in risks and Risk.OSCILLATING not in risks, SuggestionType.OPTIMIZATION_ALGORITHM,
     "Clip gradients, or use an optimizer that adapts to their size.",
     "The norm jumps by more than its own size without a rhythm.",
     ImplementationComplexity.MODERATE, "Large but true gradients are cut as well."),
    (lambda risks: Risk.OFF_SCALE in risks, SuggestionType.BATCH_NORMALIZATION,
     "Normalise the input of this layer.", "Its gradient is a thousand times from the network's median.",
     ImplementationComplexity.COMPLEX, "Behaviour differs between training and evaluation."),
    (lambda risks: Risk.INTERMITTENT in risks, SuggestionType.DROPOUT_ADJUSTMENT,
     "Lower the dropout, or the gating, in front of this layer.",
     "Its gradient is exactly zero in some samples and alive in others.",
     ImplementationComplexity.SIMPLE, "Less regularisation."),
    (lambda risks: Risk.OVERFITTING in risks, SuggestionType.REGULARIZATION_ADD,
     "Add weight decay or dropout here first.",
     "The validation loss rises while the training loss does not, and this layer holds most parameters.",
     ImplementationComplexity.MODERATE, "The training loss gets worse."),
)  # fmt: skip
ACTIONS: tuple[tuple[Callable[[_Risks], bool], str, ActionType, ImplementationEffort, list[str]], ...] = (
    (lambda risks: Risk.NONFINITE in risks, "Find the operation that produces non-finite values",
     ActionType.PARAMETER_ADJUSTMENT, ImplementationEffort.MODERATE, []),
    (lambda risks: Risk.DEAD in risks, "Reconnect the layer to the loss, or remove it",
     ActionType.ARCHITECTURAL_CHANGE, ImplementationEffort.HIGH, ["Know what cuts it off"]),
    (lambda risks: _sized(risks) and Risk.FROM_START in risks, "Initialise anew",
     ActionType.PARAMETER_ADJUSTMENT, ImplementationEffort.MODERATE, ["Restart training"]),
    (lambda risks: Risk.VANISHING in risks and Risk.JOINED in risks, "Add a skip connection",
     ActionType.ARCHITECTURAL_CHANGE, ImplementationEffort.HIGH, ["Restart training"]),
    (lambda risks: Risk.EXPLODING in risks or Risk.OSCILLATING in risks, "Lower the learning rate",
     ActionType.LEARNING_RATE_SCHEDULING, ImplementationEffort.MINIMAL, []),
    (lambda risks: Risk.EXPLODING in risks or Risk.UNSTABLE in risks, "Clip the gradient norm",
     ActionType.OPTIMIZATION_TECHNIQUE, ImplementationEffort.LOW, ["Know the usual norm"]),
)  # fmt: skip
