"""The analyses of a run in a few lines each: as records, and as pairs of words for any medium that has lines."""

from collections import Counter
from collections.abc import Iterable

from undertow.schema import Severity, StepRange
from undertow.schema.checkpoints import Drift, WeightIssue, WeightReport
from undertow.schema.seeds.enhanced import EnhancedLayerGradientAnalysis, OptimizationPriority
from undertow.schema.seeds.flow_records import GradientFlowVisualization, NodeType
from undertow.schema.seeds.history import LayerHealth
from undertow.schema.summaries import (
    DriftSummary,
    DynamicsSummary,
    FlowSummary,
    Moved,
    Named,
    Priority,
    SummaryIssue,
    WeightsSummary,
)
from undertow.views.report_wording import percent

FEW = 5
Rows = list[tuple[str, str]]  # words on the left, text on the right


def named(names: Iterable[str]) -> Named:
    unique = tuple(dict.fromkeys(names))
    return Named(len(unique), unique[:FEW])


def summarise_flow(flow: GradientFlowVisualization, steps: StepRange) -> FlowSummary:
    network = flow.flow_network
    metrics = network.network_metrics
    dead = [node.layer_name for node in network.nodes if node.node_type is NodeType.DEAD]
    dead += [layer for zone in flow.dead_zones if zone.ongoing for layer in zone.affected_layers]
    return FlowSummary(
        steps=steps,
        layers=len(flow.layer_flows),
        edges=len(network.edges),
        loss_to_input_gain=metrics.loss_to_input_gain,
        overall_flow_efficiency=metrics.overall_flow_efficiency,
        flow_stability=metrics.flow_stability,
        weakest_edge=flow.critical_paths[0].weakest_edge if flow.critical_paths else None,
        bottlenecks=named(node.layer_name for node in network.nodes if node.node_type is NodeType.BOTTLENECK),
        dead=named(dead),
        vanishing=named(layer for region in flow.vanishing_regions for layer in region.affected_layers),
        exploding=named(layer for region in flow.exploding_regions for layer in region.affected_layers),
        nonfinite=named(layer.layer_name for layer in flow.nonfinite_layers),
        unavailable={**metrics.unavailable, **flow.unavailable},
    )


def summarise_dynamics(dynamics: EnhancedLayerGradientAnalysis, steps: StepRange) -> DynamicsSummary:
    network = dynamics.network_level_analysis
    convergence, training = network.convergence_indicators, network.training_dynamics
    plateau, stability = training.plateau_detection, network.stability_assessment
    counts = Counter(detail.health_metrics.overall_health for detail in dynamics.layer_details.values())
    reasons = {**plateau.unavailable, **stability.unavailable, **training.unavailable, **convergence.unavailable}
    mentioned = DynamicsSummary.__slots__
    return DynamicsSummary(
        steps=steps,
        layers=len(dynamics.layer_details),
        health=network.overall_gradient_health,
        layer_health={str(health): counts[health] for health in LayerHealth},
        convergence_trend=convergence.convergence_trend,
        loss_slope=convergence.loss_slope,
        loss_slope_interval=convergence.loss_slope_interval,
        estimated_steps_to_convergence=convergence.estimated_steps_to_convergence,
        learning_phase=training.learning_phase,
        learning_velocity=training.learning_velocity,
        adaptation_rate=training.adaptation_rate,
        gradient_momentum=training.gradient_momentum,
        is_plateau=plateau.is_plateau,
        plateau_duration=plateau.plateau_duration,
        overall_stability=stability.overall_stability,
        stability_trend=stability.stability_trend,
        short_term_outlook=stability.stability_forecast.short_term_outlook,
        long_term_outlook=stability.stability_forecast.long_term_outlook,
        priorities=tuple(_priority(one) for one in dynamics.optimization_priorities[:FEW] if one.recommended_actions),
        unavailable={name: reason for name, reason in reasons.items() if name in mentioned},
    )


def _priority(one: OptimizationPriority) -> Priority:
    actions = tuple(action.action_name for action in one.recommended_actions)
    return Priority(one.target_name, one.target_type, one.urgency_level, one.priority_score, actions)


def summarise_weights(report: WeightReport) -> WeightsSummary:
    overall = report.overall
    return WeightsSummary(
        layers=len(report.tensors),
        parameter_count=report.parameter_count,
        health=report.health,
        mean=overall.mean,
        std=overall.std,
        minimum=overall.minimum,
        maximum=overall.maximum,
        zero_fraction=None if any("zero_count" in one.missing for one in report.tensors) else overall.zero_fraction,
        nonfinite_count=overall.nonfinite_count,
        issues=_issues(report.issues),
        drift=None if report.drift is None else _drift(report.drift),
        notes=report.notes,
    )


def _issues(issues: Iterable[WeightIssue]) -> tuple[SummaryIssue, ...]:
    """One for each kind: the same fault in many layers is one thing to read."""
    kinds: dict[tuple[str, Severity], list[WeightIssue]] = {}
    for issue in issues:
        kinds.setdefault((issue.code, issue.severity), []).append(issue)
    return tuple(
        SummaryIssue(code, same[0].name, severity, named(path for one in same for path in one.layers), same[0].summary)
        for (code, severity), same in kinds.items()
    )


def _drift(drift: Drift) -> DriftSummary:
    moved = [Moved(one.path, one.relative) for one in drift.tensors if one.relative is not None]
    moved.sort(key=lambda one: (-one.relative, one.layer))
    return DriftSummary(
        drift.against, drift.relative, drift.cosine, drift.median_relative, drift.severity, tuple(moved[:FEW])
    )


def flow_rows(flow: FlowSummary) -> Rows:
    rows = [("gain from loss to input", _number(flow.loss_to_input_gain, flow.unavailable.get("loss_to_input_gain")))]
    if flow.weakest_edge is not None:
        rows.append(("weakest edge", " → ".join(flow.weakest_edge)))
    for label, which in (
        ("bottlenecks", flow.bottlenecks),
        ("dead", flow.dead),
        ("vanishing", flow.vanishing),
        ("exploding", flow.exploding),
        ("not finite", flow.nonfinite),
    ):
        rows.append((label, _names(which)))
    return rows


def dynamics_rows(dynamics: DynamicsSummary) -> Rows:
    missing = dynamics.unavailable
    health = ", ".join(f"{count:,} {name}" for name, count in dynamics.layer_health.items() if count)
    rows = [
        ("layers", health or "none"),
        ("loss", _word(dynamics.convergence_trend, missing.get("convergence_trend"))),
        ("phase", _word(dynamics.learning_phase, missing.get("learning_phase"))),
        ("loss decrease per step", _number(dynamics.learning_velocity, missing.get("learning_velocity"))),
        ("update / weight", _number(dynamics.adaptation_rate, missing.get("adaptation_rate"))),
        ("stability", _number(dynamics.overall_stability, missing.get("overall_stability"))),
        ("its trend", _word(dynamics.stability_trend, missing.get("stability_trend"))),
    ]
    for place, one in enumerate(dynamics.priorities):
        rows.append(("first" if place == 0 else "", f"{one.target} ({one.urgency}): {'; '.join(one.actions)}"))
    return rows


def weights_rows(weights: WeightsSummary) -> Rows:
    rows = [("health", str(weights.health or "no verdict")), ("parameters", f"{weights.parameter_count:,}")]
    if weights.mean is not None:
        extent = f"from {_number(weights.minimum)} to {_number(weights.maximum)}"
        zeros = f"{percent(weights.zero_fraction or 0.0)} zero"
        rows.append(("values", f"mean {_number(weights.mean)}, std {_number(weights.std)}, {extent}, {zeros}"))
    rows += [(str(issue.severity), f"{issue.code} {issue.name}: {issue.summary}") for issue in weights.issues]
    drift = weights.drift
    if drift is not None:
        moved = ", ".join(f"{one.layer} {_number(one.relative)}" for one in drift.moved_most[:3])
        rows.append(("drift", f"{_number(drift.relative)} of the norm since {drift.against}; most: {moved or 'none'}"))
    rows += [("note", note) for note in weights.notes]
    return rows


def _names(which: Named) -> str:
    if not which.count:
        return "none"
    more = which.count - len(which.first)
    return ", ".join(which.first) + (f" and {more:,} more" if more else "")


def _number(value: float | None, reason: str | None = None) -> str:
    return f"{value:.3g}" if value is not None else f"not known: {reason}" if reason else "not known"


def _word(value: str | None, reason: str | None = None) -> str:
    return str(value) if reason is None and value is not None else f"{value or 'not known'}: {reason}"
