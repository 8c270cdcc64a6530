"""The verdicts in the original's records of a run: those of its diagnosis, and no others.

The original judges by limits of its own. For plain arrays they are all there is; beside a diagnosis they would be a
second opinion. So every word in a run's records that says something is wrong is a finding's word, and what the numbers
alone would say against the diagnosis is left unsaid, with the reason.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from undertow.analyze.layer_numbers import LayerNumbers
from undertow.analyze.series import Counts, LayerSeries
from undertow.components.layer_health import FEW, UNTRIED, UNTRIED_ACTION, LayerVerdicts
from undertow.components.training_phase import NO_PLATEAU
from undertow.schema import Finding, Severity, seeds
from undertow.schema.severity import worst_of

NONFINITE, VANISHING, EXPLODING, DEAD = ("NUM001",), ("GRD001",), ("GRD002",), ("GRD003", "GRD004")
OSCILLATING, CONFLICTING = ("GRD005",), ("GRD009",)
LOSING = (*VANISHING, *DEAD, "ACT001", "ACT002")  # gradient gets lost on the way: only then is a module a bottleneck
UNSTABLE = ("NUM001", "NUM002", "GRD002", "GRD005", "GRD006", "OPT001", "OPT003", "OPT004")
NOT_CONVERGING = ("NUM002", "OPT001", "OPT004", "OPT005", "OPT006")
NO_OBJECTION = "the numbers hint at it, and the diagnosis finds nothing wrong"

_HEALTH = {Severity.INFO: seeds.LayerHealth.HEALTHY, Severity.CRITICAL: seeds.LayerHealth.CRITICAL}  # else a warning
_TRENDS = {
    **dict.fromkeys(("NUM002", "OPT001"), seeds.ConvergenceTrend.DIVERGING),
    "OPT004": seeds.ConvergenceTrend.OSCILLATING,
    **dict.fromkeys(("OPT005", "OPT002"), seeds.ConvergenceTrend.STABLE),
}
_PHASES = {
    **dict.fromkeys(("NUM002", "OPT001", "OPT004")),
    "OPT005": seeds.LearningPhase.INITIAL_LEARNING,
    "OPT006": seeds.LearningPhase.OVERFITTING,
    "OPT002": seeds.LearningPhase.PLATEAU,
}
_SOURCES = {
    **dict.fromkeys((*VANISHING, *DEAD), seeds.InstabilityType.GRADIENT_VANISHING),
    **dict.fromkeys(EXPLODING, seeds.InstabilityType.GRADIENT_EXPLOSION),
    **dict.fromkeys((*OSCILLATING, "OPT004"), seeds.InstabilityType.OSCILLATION),
    **dict.fromkeys(("GRD006", "OPT003"), seeds.InstabilityType.CHAOS),
    "OPT002": seeds.InstabilityType.STAGNATION,
}
# The original's kinds of advice, by code or else by family.
_ADVICE = {
    **dict.fromkeys(
        ("NUM", "UPD"), (seeds.SuggestionType.OPTIMIZATION_ALGORITHM, seeds.ActionType.OPTIMIZATION_TECHNIQUE)
    ),
    "WGT": (seeds.SuggestionType.WEIGHT_INITIALIZATION, seeds.ActionType.PARAMETER_ADJUSTMENT),
    "OPT": (seeds.SuggestionType.LEARNING_RATE_ADJUSTMENT, seeds.ActionType.LEARNING_RATE_SCHEDULING),
    "OPT006": (seeds.SuggestionType.REGULARIZATION_ADD, seeds.ActionType.REGULARIZATION_METHOD),
}
_OTHER_ADVICE = (seeds.SuggestionType.ARCHITECTURAL_MODIFICATION, seeds.ActionType.ARCHITECTURAL_CHANGE)


class RunVerdicts:
    """The findings of a run, asked by code and by layer."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = findings

    def says(self, codes: Sequence[str]) -> bool:
        return any(finding.code in codes for finding in self.findings)

    def ongoing(self, codes: Sequence[str]) -> Finding | None:
        """The first one in the order of `codes` that goes on."""
        found = [finding for finding in self.findings if finding.ongoing and finding.code in codes]
        return min(found, key=lambda finding: codes.index(finding.code), default=None)

    def of(self, path: str, codes: Sequence[str] | None = None) -> list[Finding]:
        """Those that name this layer, or a module around it."""
        return [one for one in self.findings if (codes is None or one.code in codes) and covers(one, path)]

    def named_by(self, names: Sequence[str], codes: Sequence[str]) -> list[str]:
        return [name for name in names if self.of(name, codes)]

    def is_dead(self, module: str, layers: Sequence[str]) -> bool:
        """A module is dead when a finding names it, or every measured parameter of it."""
        owned = [name for name in layers if name.startswith(f"{module}.")]
        return bool(self.of(module, DEAD)) or (bool(owned) and all(self.of(name, DEAD) for name in owned))

    def of_layers(self, series: LayerSeries, numbers: LayerNumbers) -> LayerVerdicts:
        named = [self.of(name) for name in series.names]
        few = (numbers.finite_count < FEW).tolist()

        def flags(codes: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
            return np.array([any(one.code in codes for one in found) for found in named], bool)

        everywhere = [one for one in self.findings if not one.layers and one.severity is not Severity.INFO]
        return LayerVerdicts(
            health=[_health(found, few=unknown) for found, unknown in zip(named, few)],
            risk_factors=[[f"{one.code} {one.name}" for one in found] for found in named],
            suggestions=[[one for finding in found for one in _suggestions(finding)] for found in named],
            actions=[_actions(found) for found in named],
            oscillating=flags(OSCILLATING),
            dead=flags(DEAD),
            lost=flags((*NONFINITE, *DEAD)),
            starving=np.zeros(len(named), bool),  # what to do about it is in the remedies
            network_health=_health(self.findings, few=not len(series.steps)),
            network_actions=_actions(everywhere),
        )

    def of_convergence(self, measured: seeds.ConvergenceIndicators) -> seeds.ConvergenceIndicators:
        unavailable = dict(measured.unavailable)
        finding = self.ongoing(tuple(_TRENDS))
        trend = measured.convergence_trend
        if finding is not None:
            trend = _TRENDS[finding.code]
            unavailable.pop("convergence_trend", None)
        elif trend in (seeds.ConvergenceTrend.DIVERGING, seeds.ConvergenceTrend.OSCILLATING):
            trend, unavailable["convergence_trend"] = seeds.ConvergenceTrend.UNKNOWN, NO_OBJECTION
        measured = replace(measured, convergence_trend=trend, unavailable=unavailable)
        against = self.ongoing(NOT_CONVERGING)
        if against is None:
            return measured
        unavailable |= dict.fromkeys(
            ("estimated_steps_to_convergence", "steps_interval"), f"{against.code} {against.name}"
        )
        return replace(measured, estimated_steps_to_convergence=None, steps_interval=None)

    def of_phase(self, measured: seeds.TrainingDynamics) -> seeds.TrainingDynamics:
        finding = self.ongoing(tuple(_PHASES))
        if finding is None:
            return measured
        phase, unavailable = _PHASES[finding.code], dict(measured.unavailable)
        unavailable.pop("learning_phase", None)
        if phase is None:
            unavailable["learning_phase"] = f"{finding.code} {finding.name}"
        return replace(measured, learning_phase=phase, unavailable=unavailable)

    def of_plateau(self, steps: Counts, measured: seeds.PlateauDetection) -> seeds.PlateauDetection:
        finding = self.ongoing(("OPT002",))
        if finding is None:
            return measured if measured.is_plateau is None else NO_PLATEAU
        duration = int(((steps >= finding.first_step) & (steps <= finding.last_step)).sum())
        severity = list(seeds.PlateauSeverity)[min(level(finding), 2)]
        return seeds.PlateauDetection(True, duration, severity, [remedy.what for remedy in finding.remedies])

    def of_stability(self, measured: seeds.StabilityAssessment) -> seeds.StabilityAssessment:
        finding = self.ongoing(UNSTABLE)
        trend, outlook = measured.stability_trend, measured.stability_forecast
        unavailable = dict(measured.unavailable)
        if finding is not None:
            trend = seeds.StabilityTrend.DEGRADING
            unavailable.pop("stability_trend", None)
            worse = seeds.StabilityOutlook.DETERIORATING
            outlook = seeds.StabilityForecast(worse, worse, finding.confidence, [one.what for one in finding.remedies])
        elif seeds.StabilityOutlook.DETERIORATING in (outlook.short_term_outlook, outlook.long_term_outlook):
            unsure = seeds.StabilityOutlook.UNCERTAIN
            outlook = replace(outlook, short_term_outlook=unsure, long_term_outlook=unsure, recommended_monitoring=[])
        if finding is None and trend is seeds.StabilityTrend.DEGRADING:
            trend, unavailable["stability_trend"] = None, NO_OBJECTION
        sources = [
            seeds.InstabilitySource(_SOURCES[one.code], list(one.layers), one.severity.rank / 4, one.summary)
            for one in self.findings
            if one.code in _SOURCES
        ]
        return seeds.StabilityAssessment(measured.overall_stability, trend, sources, outlook, unavailable)


def covers(finding: Finding, path: str) -> bool:
    return any(path == layer or path.startswith(f"{layer}.") for layer in finding.layers)


def level(finding: Finding) -> int:
    """0 mild … 3 critical, as the original counts its severities."""
    return max(0, finding.severity.rank - 1)


def _health(findings: Sequence[Finding], *, few: bool) -> seeds.LayerHealth:
    worst = worst_of(one.severity for one in findings)
    if worst is Severity.INFO and few:
        return seeds.LayerHealth.UNKNOWN
    return _HEALTH.get(worst, seeds.LayerHealth.WARNING)


def _kinds(finding: Finding) -> tuple[seeds.SuggestionType, seeds.ActionType]:
    return _ADVICE.get(finding.code) or _ADVICE.get(finding.code[:3]) or _OTHER_ADVICE


def _suggestions(finding: Finding) -> list[seeds.LayerOptimizationSuggestion]:
    effort = seeds.ImplementationComplexity.MODERATE
    return [
        seeds.LayerOptimizationSuggestion(
            _kinds(finding)[0], one.what, finding.summary, None, effort, [one.risk], dict(UNTRIED)
        )
        for one in finding.remedies
    ]


def _actions(findings: Sequence[Finding]) -> list[seeds.PrioritizedAction]:
    """The first remedy of each."""
    kinds = {one.remedies[0].what: _kinds(one)[1] for one in findings if one.remedies}
    return [
        seeds.PrioritizedAction(what, kind, None, seeds.ImplementationEffort.MODERATE, [], dict(UNTRIED_ACTION))
        for what, kind in kinds.items()
    ]
