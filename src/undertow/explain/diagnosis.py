"""Findings and facts of a run, turned into one answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from undertow.explain.divergence import Course, divergence
from undertow.explain.narrative import alarm, calm, cut_short, damage, how_it_ended, nothing, why_zero_steps
from undertow.explain.origin import origin_in, placed, poisoned_weight
from undertow.explain.ranking import ranked
from undertow.explain.remedies import with_remedies
from undertow.schema.facts import RunFacts, RunStatus
from undertow.schema.findings import Coverage, Culprit, Diagnosis, Finding, Overhead, StepRange
from undertow.schema.layers import LayerTable
from undertow.schema.severity import Health, Severity, health_of


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
    course: Course | None = None,
) -> Diagnosis:
    """`findings` as the engine left them; `problems` are files that are damaged or missing."""
    reasons = [*problems, *_reasons(facts, steps, status, problems)]
    complete = explained(findings, layers, events, course)
    health = health_of(finding.severity for finding in complete) if steps.recorded else None
    if problems and health is Health.HEALTHY:
        health = None  # what is missing may hold what is wrong
    watched = len(layers.parameters)
    return Diagnosis(
        undertow=facts.undertow,
        run=run,
        steps=steps,
        health=health,
        culprit=_culprit(complete),
        story=_story(complete, facts, steps, watched, status, problems),
        findings=tuple(complete),
        overhead=_overhead(facts),
        coverage=Coverage(watched, facts.layers_skipped, tuple(reasons)),
    )


def explained(
    findings: Sequence[Finding],
    layers: LayerTable,
    events: Sequence[Mapping[str, Any]] = (),
    course: Course | None = None,
) -> list[Finding]:
    """The findings ranked, placed and with their remedies."""
    origin = origin_in(events)
    poisoned = poisoned_weight(findings, origin, layers)
    found = [_complete(placed(finding, origin, poisoned), course) for finding in findings]
    return ranked(found, weights_came_first=poisoned is not None)


def _complete(finding: Finding, course: Course | None) -> Finding:
    growth = None if course is None else divergence(finding, course)
    if growth is None:
        return with_remedies(finding)
    return with_remedies(replace(finding, evidence=(growth, *finding.evidence)), diverged=True)


def _story(
    findings: Sequence[Finding],
    facts: RunFacts,
    steps: StepRange,
    watched: int,
    status: str,
    problems: Sequence[str],
) -> str:
    alarms = [finding for finding in findings if finding.severity.is_alarm]
    if alarms:
        return alarm(alarms)
    if problems:
        return damage(problems, facts, steps)
    if not steps.recorded:
        return nothing(facts, status)
    if status == RunStatus.DETACHED and facts.message:
        return cut_short(facts.message, findings, steps)
    return calm(findings, steps, watched)


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
    if not steps.recorded and not problems:
        return why_zero_steps(facts, status)
    reasons = list(facts.reasons)
    if facts.frames_dropped:
        reasons.append(f"{facts.frames_dropped:,} frames could not be written and are missing")
    if status == "killed":
        reasons.append("the process was killed: the run ends with the last frame it had written")
    if facts.message:
        reasons.append(how_it_ended(facts, status))
    return reasons
