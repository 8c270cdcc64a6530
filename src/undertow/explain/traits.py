"""What a finding's condition says about itself: its stage among causes, and how far it can be trusted as one."""

from __future__ import annotations

from undertow.detect.engine.condition import Condition
from undertow.detect.engine.registry import condition_of, conditions_of
from undertow.detect.engine.stage import Stage
from undertow.schema.findings import Finding

UNCLEAR = "Something is wrong, and the cause is not clear from what was measured"


def traits_of(finding: Finding) -> type[Condition]:
    """The condition that raised it; where that is not known, the one of its code that sits at the earliest stage."""
    known = condition_of(finding.code, finding.variant)
    return known or min(conditions_of(finding.code), key=lambda one: (one.stage, not one.remedies))


def stage_of(code: str) -> Stage:
    """The earliest stage of the conditions behind a code."""
    return min(one.stage for one in conditions_of(code))


def meaning_of(finding: Finding) -> str:
    """What it means for the training: the second sentence of the story, without a full stop."""
    return traits_of(finding).meaning or UNCLEAR
