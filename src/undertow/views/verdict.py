"""What a run's diagnosis is for a page that must not keep anybody waiting.

A finished run of moderate size is judged anew, as `undertow report` does. One that is still written, or is large,
is judged by what the watching process said of it: its journal.
"""

from dataclasses import dataclass, replace
from typing import Any

from undertow.detect.engine.journal import changes_in
from undertow.run import Run
from undertow.schema import Diagnosis, Finding, Health, Severity, health_of
from undertow.store.journal import read_journal
from undertow.store.listing import RunSummary

_QUICK = 1_000_000  # frames × layers that are judged anew within about a second
_UNJUDGED = (
    "This run has no journal: it was not judged while it was written. That takes long for a run of this size. "
    "`undertow report` judges it from its numbers."
)


@dataclass(frozen=True, slots=True)
class Verdict:
    diagnosis: Diagnosis
    from_journal: bool


def judge(run: Run) -> Verdict:
    size = run.reader.frame_count * max(1, len(run.layers))
    if run.status != "running" and size <= _QUICK:
        return Verdict(run.diagnose(), from_journal=False)
    return Verdict(_from_journal(run), from_journal=True)


def _from_journal(run: Run) -> Diagnosis:
    events, steps = run.events, run.steps
    found = _findings(events, int(steps[-1]) if len(steps) else 0)
    diagnosis = run.explain(found)
    was_judged = was_watched(events) or found or not len(steps)
    return diagnosis if was_judged else replace(diagnosis, health=None, story=_UNJUDGED)


def was_watched(events: list[dict[str, Any]]) -> bool:
    """Whoever watches a run notes its layers first; without that, an empty journal tells nothing."""
    return any(event.get("kind") == "layers" for event in events)


def _findings(events: list[dict[str, Any]], last: int) -> list[Finding]:
    """The last word on each; what goes on reaches to the newest step."""
    latest = {change.place: change.finding for change in changes_in(events)}
    return [replace(one, last_step=max(last, one.last_step)) if one.ongoing else one for one in latest.values()]


@dataclass(frozen=True, slots=True)
class Glance:
    """What a list says of a run: how it is, and the finding to look at first."""

    health: Health | None
    finding: Finding | None = None


def glance_at(diagnosis: Diagnosis) -> Glance:
    alarms = [one for one in diagnosis.findings if one.severity is not Severity.INFO]
    return Glance(diagnosis.health, alarms[0] if alarms else None)


def glance_at_journal(summary: RunSummary) -> Glance:
    """For a list of runs, no more than the journal is read: it shows the cause that was named when the run was closed,
    and while it is still written, or where none was named, the worst finding."""
    events, _ = read_journal(summary.folder) if summary.steps and not summary.problem else ([], 0)
    if not was_watched(events):
        return Glance(None)
    findings = _findings(events, 0)
    alarms = [one for one in findings if one.severity is not Severity.INFO]
    cause = summary.cause.partition(" ")[0]
    first = max(alarms, key=lambda one: (one.code == cause, one.severity.rank, -one.first_step), default=None)
    return Glance(health_of(finding.severity for finding in findings), first)
