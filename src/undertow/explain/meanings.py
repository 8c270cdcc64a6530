"""What each finding means for the training: the second sentence of the story."""

from __future__ import annotations

from undertow.detect.engine.registry import condition_of, conditions_of
from undertow.schema.findings import Finding

UNCLEAR = "Something is wrong, and the cause is not clear from what was measured"


def meaning_of(finding: Finding) -> str:
    condition = condition_of(finding.code, finding.variant) or next(iter(conditions_of(finding.code)), None)
    return (condition.meaning if condition is not None else "") or UNCLEAR
