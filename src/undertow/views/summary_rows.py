"""The summaries of flow, dynamics and weights as pairs of words, for any medium that has lines."""

from undertow.schema.summaries import DynamicsSummary, FlowSummary, Named, WeightsSummary
from undertow.views.report_wording import percent

Rows = list[tuple[str, str]]


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
