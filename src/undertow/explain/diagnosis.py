"""Findings and facts of a run, turned into one answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from undertow.explain.narrative import story, why_zero_steps
from undertow.explain.origin import origin_in, placed, poisoned_weight
from undertow.explain.ranking import ranked
from undertow.explain.remedies import with_remedies
from undertow.schema.facts import RunFacts
from undertow.schema.findings import Coverage, Culprit, Diagnosis, Finding, Overhead, StepRange
from undertow.schema.layers import LayerTable
from undertow.schema.severity import Severity, health_of


def diagnose(
    findings: Sequence[Finding],
    *,
    run: str,
    facts: RunFacts,
    layers: LayerTable,
    steps: StepRange,
    events: Sequence[Mapping[str, Any]] = (),
    status: str = "",
    problems: Sequence[str] = (),
) -> Diagnosis:
    """`findings` as the engine left them; `problems` are damaged files the reader met."""
    reasons = _reasons(facts, steps, status, problems)
    complete = explained(findings, layers, events)
    health = health_of(finding.severity for finding in complete) if steps.recorded else None
    watched = len(layers.parameters)
    return Diagnosis(
        undertow=facts.undertow,
        run=run,
        steps=steps,
        health=health,
        culprit=_culprit(complete),
        story=story(complete, health, steps, watched, reasons),
        findings=tuple(complete),
        overhead=_overhead(facts),
        coverage=Coverage(watched, facts.layers_skipped, tuple(reasons)),
    )


def explained(
    findings: Sequence[Finding], layers: LayerTable, events: Sequence[Mapping[str, Any]] = ()
) -> list[Finding]:
    """The findings ranked, placed and with their remedies."""
    origin = origin_in(events)
    poisoned = poisoned_weight(findings, origin, layers)
    found = [with_remedies(placed(finding, origin, poisoned)) for finding in findings]
    return ranked(found, weights_came_first=poisoned is not None)


def _culprit(findings: Sequence[Finding]) -> Culprit | None:
    if not findings or findings[0].severity is Severity.INFO:
        return None
    first = findings[0]
    return Culprit(first.layers[0] if first.layers else None, first.code, first.summary)


def _overhead(facts: RunFacts) -> Overhead:
    seconds = facts.overhead_seconds_per_step
    return Overhead(
        fraction_of_step=_finite(facts.overhead_fraction),
        bytes_per_step=_finite(facts.bytes_per_step),
        milliseconds_per_step=None if seconds is None else _finite(seconds * 1e3),
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _reasons(facts: RunFacts, steps: StepRange, status: str, problems: Sequence[str]) -> list[str]:
    if not steps.recorded:
        return [*why_zero_steps(facts, status), *problems]
    reasons = list(facts.reasons)
    if facts.frames_dropped:
        reasons.append(f"{facts.frames_dropped:,} frames could not be written and are missing")
    if status == "killed":
        reasons.append("the process was killed: the run ends with the last frame it had written")
    if facts.message:
        reasons.append(facts.message)
    return [*reasons, *problems]
