"""What each finding means for the training: the second sentence of the story."""

from __future__ import annotations

from undertow.detect.engine.registry import condition_of, conditions_of
from undertow.explain.traits import VAGUE
from undertow.schema.findings import Finding

MEANINGS: dict[str, str] = {
    "WGT005": "The layer loses what it has learnt faster than it can learn",
    "WGT006": "What the weights held at the start is being overwritten",
}

UNCLEAR = "Something is wrong, and the cause is not clear from what was measured"


def meaning_of(finding: Finding) -> str:
    condition = condition_of(finding.code, finding.variant) or next(iter(conditions_of(finding.code)), None)
    if condition is not None:
        return condition.meaning or UNCLEAR
    return UNCLEAR if finding.code in VAGUE else MEANINGS[finding.code]
