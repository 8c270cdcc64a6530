"""What a finding's condition says about itself: its stage among causes, and how far it can be trusted as one."""

from __future__ import annotations

from typing import NamedTuple

from undertow.detect.engine.registry import condition_of, conditions_of
from undertow.detect.engine.stage import Stage
from undertow.explain import causes
from undertow.schema.findings import Finding


class Traits(NamedTuple):
    stage: Stage
    is_exact: bool
    is_standing: bool
    is_momentary: bool
    is_vague: bool
    is_secondary: bool


def traits_of(finding: Finding) -> Traits:
    code = finding.code
    condition = condition_of(code, finding.variant) or next(iter(conditions_of(code)), None)
    if condition is None:
        return Traits(
            causes.STAGE_OF.get(code, Stage.OUTCOME),
            code in causes.EXACT,
            code in causes.STANDING,
            code in causes.PASSING,
            code in causes.VAGUE,
            code in causes.SECONDARY,
        )
    return Traits(
        condition.stage,
        condition.is_exact,
        condition.is_standing,
        condition.is_momentary,
        condition.is_vague,
        condition.is_secondary,
    )
