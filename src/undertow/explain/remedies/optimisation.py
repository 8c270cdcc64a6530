"""Which way a finding about the size of steps points."""

from __future__ import annotations

import math

from undertow.detect.engine.registry import condition_of
from undertow.detect.features.remedies import LOWER_LEARNING_RATE
from undertow.schema.findings import Finding

LOWER_RATE = LOWER_LEARNING_RATE.id
_RATES = ("lr", "optimizer_rate", "update_ratio")


def rate_is_too_low(finding: Finding) -> bool:
    """Whether steps are too small, where a finding is about their size. Findings of old journals do not say which
    condition raised them: there the rate or the update that was measured beside what was expected tells it.
    """
    condition = condition_of(finding.code, finding.variant)
    if condition is not None:
        return condition.lowers_steps
    for evidence in finding.evidence:
        value, expected = evidence.value, evidence.expected
        if value is None or expected is None or not evidence.quantity.startswith(_RATES):
            continue
        if math.isfinite(value) and value != expected:
            return value < expected
    return False
