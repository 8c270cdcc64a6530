"""Findings as plain records for the run's journal, and back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec

from undertow.detect.engine.ledger import Change, FindingChange
from undertow.detect.engine.registry import condition_of, conditions_of
from undertow.schema import Finding

EVENT = "finding"


def to_record(change: FindingChange) -> dict[str, Any]:
    """The fields of an event of kind "finding"."""
    finding = asdict(change.finding)
    finding["severity"] = str(change.finding.severity)
    return {"change": str(change.change), "key": change.finding.variant, "finding": finding}


def changes_in(events: Sequence[Mapping[str, Any]]) -> Iterator[FindingChange]:
    """The changes a journal tells of; records that cannot be understood are passed over."""
    for event in events:
        if event.get("kind") != EVENT:
            continue
        try:
            finding = msgspec.convert(event.get("finding"), Finding)
            if not conditions_of(finding.code):
                continue  # of a later version, or of nobody
            yield FindingChange(Change(event.get("change", "")), _with_variant(finding, str(event.get("key", ""))))
        except (msgspec.ValidationError, ValueError):
            continue


def _with_variant(finding: Finding, key: str) -> Finding:
    """Journals of earlier versions name the variant beside the finding, some by another name."""
    variant = finding.variant or key.replace(" ", "-")
    condition = condition_of(finding.code, variant)
    return replace(finding, variant=variant if condition is None else condition.variant)
