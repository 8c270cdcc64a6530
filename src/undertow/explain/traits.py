"""What a finding's condition says about itself: its stage among causes, and how far it can be trusted as one."""

from undertow.detect.engine import Condition, Stage
from undertow.detect.engine.registry import condition_of, conditions_of
from undertow.schema import Finding

# What a layer that is not trained can bring about: it carries no signal, and holds up what is learned.
LOCAL_EFFECTS = (Stage.SIGNAL, Stage.BLOCKED, Stage.COURSE, Stage.OUTCOME)
UNCLEAR = "Something is wrong, and the cause is not clear from what was measured"


def traits_of(finding: Finding) -> type[Condition]:
    """The condition that raised it; where that is not known, the one of its code that explains least."""
    known = condition_of(finding.code, finding.variant)
    return known or max(conditions_of(finding.code), key=lambda one: (one.stage, bool(one.remedies)))


def stage_of(code: str) -> Stage:
    """The earliest stage of the conditions behind a code."""
    return min(one.stage for one in conditions_of(code))


def can_explain(cause: str, effect: str) -> bool:
    """Whether findings of one code can bring about those of another, wherever and whenever they are."""
    first, second = stage_of(cause), stage_of(effect)
    if second <= Stage.INITIALISATION or cause == effect:
        return False
    if all(one.is_local for one in conditions_of(cause)):
        return second in LOCAL_EFFECTS
    return first < second


def meaning_of(finding: Finding) -> str:
    """What it means for the training: the second sentence of the story, without a full stop."""
    return traits_of(finding).meaning or UNCLEAR
