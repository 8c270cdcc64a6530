"""Findings as plain records for the run's journal, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from undertow.detect.engine import Change, FindingChange
from undertow.schema.findings import Finding

EVENT = "finding"


def to_record(change: FindingChange) -> dict[str, Any]:
    """The fields of an event of kind "finding"."""
    finding = asdict(change.finding)
    finding["severity"] = str(change.finding.severity)
    return {"change": str(change.change), "key": change.key, "finding": finding}


def changes_in(events: Sequence[Mapping[str, Any]]) -> Iterator[FindingChange]:
    """The changes a journal tells of; records that cannot be understood are passed over."""
    for event in events:
        if event.get("kind") != EVENT:
            continue
        try:
            finding = msgspec.convert(event.get("finding"), Finding)
            yield FindingChange(Change(event.get("change", "")), finding, str(event.get("key", "")))
        except (msgspec.ValidationError, ValueError):
            continue
