"""What each finding means for the training: the second sentence of the story."""

from __future__ import annotations

from undertow.detect.engine.registry import condition_of, conditions_of
from undertow.explain.traits import VAGUE
from undertow.schema.findings import Finding

MEANINGS: dict[str, str] = {
    "UPD001": "The weights change so much in one step that they forget what the steps before had learnt",
    "UPD002": "The weights hardly move, so nothing is learnt in the time of this run",
    "UPD003": "The layer keeps its initial values while the rest learns around it, so the loss still looks fine",
    "UPD004": "These layers stay as they were when the training began",
    "WGT005": "The layer loses what it has learnt faster than it can learn",
    "WGT006": "What the weights held at the start is being overwritten",
}

UNCLEAR = "Something is wrong, and the cause is not clear from what was measured"


def meaning_of(finding: Finding) -> str:
    condition = condition_of(finding.code, finding.variant) or next(iter(conditions_of(finding.code)), None)
    if condition is not None:
        return condition.meaning or UNCLEAR
    return UNCLEAR if finding.code in VAGUE else MEANINGS[finding.code]
