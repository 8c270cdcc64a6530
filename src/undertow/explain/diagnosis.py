"""Findings and facts of a run, turned into one answer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from undertow.explain.blindness import blind_rules, unseen_streams
from undertow.explain.divergence import ValueHistory, divergence
from undertow.explain.localisation import located
from undertow.explain.loss_history import LossHistory
from undertow.explain.narrative import alarm, calm, cut_short, damage, how_it_ended, nothing, why_zero_steps
from undertow.explain.origin import at_its_module, origin_in, placed, poisoned_weight
from undertow.explain.ranking import Ranking
from undertow.explain.remedies import with_remedies
from undertow.explain.source_lines import SourceLines
from undertow.explain.traits import traits_of
from undertow.explain.user_program import Program
from undertow.schema import (
    Coverage,
    Culprit,
    Diagnosis,
    Finding,
    Health,
    LayerGraph,
    LayerTable,
    Overhead,
    RunFacts,
    RunStatus,
    Severity,
    StepRange,
    health_of,
)


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
    history: ValueHistory | None = None,
    graph: LayerGraph | None = None,
    losses: LossHistory | None = None,
    unseen: Sequence[str] = (),
) -> Diagnosis:
    """`findings` as the engine left them; `problems` are files that are damaged or missing; `unseen` is what the
    record does not hold, so that nothing could be said about it.
    """
    blind = blind_rules(facts.coverage)
    hardly_seen = unseen_streams(facts.coverage, blind)
    ranked = explained(findings, layers, events, history, graph, facts.optimizers, losses)
    health = health_of(finding.severity for finding in ranked) if steps.recorded else None
    if health in (Health.HEALTHY, Health.MINOR):  # beside an alarm, it matters little what was hardly measured
        unseen = [*hardly_seen, *unseen]
    reasons = [*problems, *_reasons(facts, steps, status, problems), *(unseen if steps.recorded else ())]
    if problems and health is Health.HEALTHY:
        health = None  # what is missing may hold what is wrong
    watched = len(layers.parameters)
    return Diagnosis(
        undertow=facts.undertow,
        run=run,
        steps=steps,
        health=health,
        culprit=_culprit(ranked),
        story=_story(ranked, facts, steps, watched, status, problems, unseen),
        findings=tuple(ranked),
        overhead=_overhead(facts),
        coverage=Coverage(watched, facts.layers_skipped, tuple(reasons), facts.coverage, blind),
        complete=not (hardly_seen or unseen or problems) if facts.coverage else None,
        status=status,
        message=facts.message,
    )


def explained(
    findings: Sequence[Finding],
    layers: LayerTable,
    events: Sequence[Mapping[str, Any]] = (),
    history: ValueHistory | None = None,
    graph: LayerGraph | None = None,
    optimizers: Sequence[Mapping[str, Any]] = (),
    losses: LossHistory | None = None,
) -> list[Finding]:
    """The findings placed, with their remedies, linked to their causes, and ranked."""
    each, ranking = _explain_each(findings, layers, events, history, graph, optimizers, losses)
    return [each[place] for place in ranking.in_order()]


def explained_among(
    finding: Finding,
    others: Sequence[Finding],
    layers: LayerTable,
    events: Sequence[Mapping[str, Any]] = (),
    history: ValueHistory | None = None,
    graph: LayerGraph | None = None,
    optimizers: Sequence[Mapping[str, Any]] = (),
    losses: LossHistory | None = None,
) -> Finding:
    """One finding as it stands among all that is known: what it follows from, and what to do."""
    return _explain_each([finding, *others], layers, events, history, graph, optimizers, losses)[0][0]


def _explain_each(
    findings: Sequence[Finding],
    layers: LayerTable,
    events: Sequence[Mapping[str, Any]],
    history: ValueHistory | None,
    graph: LayerGraph | None,
    optimizers: Sequence[Mapping[str, Any]],
    losses: LossHistory | None,
) -> tuple[list[Finding], Ranking]:
    origin = at_its_module(origin_in(events), layers)
    poisoned = poisoned_weight(findings, origin, layers)
    program = Program.of(optimizers, layers)
    found = [placed(finding, origin, poisoned, layers) for finding in findings]
    if graph is not None:
        found = [located(finding, layers, graph) for finding in found]
    ranking = Ranking(found, weights_came_first=poisoned is not None, losses=losses)
    found = [_with_remedies(finding, history, program, losses) for finding in found]
    lines = SourceLines(events, origin, layers)
    rates = [None if losses is None else losses.rate_at(finding.detected_step) for finding in found]
    return ranking.linked([lines.pointed(finding, rate) for finding, rate in zip(found, rates)]), ranking


def _with_remedies(
    finding: Finding, history: ValueHistory | None, program: Program, losses: LossHistory | None
) -> Finding:
    if losses is not None:
        program = replace(program, rate_now=losses.rate_at(finding.detected_step))
    growth = None if history is None else divergence(finding, history)
    if growth is None:
        return with_remedies(finding, program)
    return with_remedies(replace(finding, evidence=(growth, *finding.evidence)), program, diverged=True)


def _story(
    findings: Sequence[Finding],
    facts: RunFacts,
    steps: StepRange,
    watched: int,
    status: str,
    problems: Sequence[str],
    unseen: Sequence[str],
) -> str:
    alarms = [finding for finding in findings if finding.severity.is_alarm]
    if alarms:
        return alarm(alarms)
    if problems:
        return damage(problems, facts, steps)
    if not steps.recorded:
        return nothing(facts, status)
    if status in (RunStatus.DETACHED, RunStatus.FAILED) and facts.message:
        return cut_short(how_it_ended(facts, status), status, findings, steps)
    return calm(findings, steps, watched, unseen)


def _culprit(findings: Sequence[Finding]) -> Culprit | None:
    if not findings or findings[0].severity is Severity.INFO:
        return None
    first = findings[0]
    why = f"{first.summary} The cause is not clear." if traits_of(first).is_vague else first.summary
    return Culprit(first.layers[0] if first.layers else None, first.code, why)


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
    if facts.frames_dropped and not problems:
        reasons.append(f"{facts.frames_dropped:,} frames could not be written and are missing")
    if status == "killed":
        reasons.append("the process was killed: the run ends with the last frame it had written")
    if facts.message:
        reasons.append(how_it_ended(facts, status))
    return reasons
