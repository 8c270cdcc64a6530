"""What a list says of a run at a glance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from undertow.detect.engine.journal import to_record
from undertow.detect.engine.ledger import Change, FindingChange
from undertow.schema import Finding, Health, Severity
from undertow.schema.codes import CODES
from undertow.store.listing import RunSummary
from undertow.views import verdict
from undertow.views.verdict import glance_at_journal

CLOSED = RunSummary(Path("run"), "run", "finished", 40, 39, None, 0.0, health="critical", cause="GRD007 not-cleared")


def event(code: str, severity: Severity, step: int) -> dict[str, Any]:
    finding = Finding(
        code, CODES[code], severity, layers=(), first_step=step, detected_step=step, last_step=39, ongoing=True,
        confidence=0.9, summary=code, evidence=(),
    )  # fmt: skip
    return {"kind": "finding", **to_record(FindingChange(Change.OPENED, finding))}


def test_a_closed_run_is_listed_with_its_cause_and_one_in_progress_with_the_worst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = [{"kind": "layers"}, event("GRD007", Severity.SEVERE, 1), event("NUM002", Severity.CRITICAL, 15)]
    monkeypatch.setattr(verdict, "read_journal", lambda _: (events, 0))
    for summary, code in ((CLOSED, "GRD007"), (replace(CLOSED, cause=""), "NUM002")):
        glance = glance_at_journal(summary)
        assert glance.health is Health.CRITICAL
        assert glance.finding is not None
        assert glance.finding.code == code


def test_of_findings_as_bad_as_each_other_the_earliest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    later, first = event("NUM002", Severity.SEVERE, 15), event("GRD007", Severity.SEVERE, 3)
    for events in ([later, first], [first, later]):
        monkeypatch.setattr(verdict, "read_journal", lambda _, events=events: ([{"kind": "layers"}, *events], 0))
        glance = glance_at_journal(replace(CLOSED, cause=""))
        assert glance.finding is not None
        assert (glance.finding.code, glance.finding.first_step) == ("GRD007", 3)
