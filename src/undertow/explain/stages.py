"""Which finding can bring about which: by the stages of their conditions, when they began, and what the loss did."""

from undertow.detect.engine import Condition, Stage
from undertow.explain.loss_history import LossHistory
from undertow.explain.traits import LOCAL_EFFECTS, traits_of
from undertow.schema import Finding, Severity

SLACK = 10  # steps; a statistical condition cannot tell the first bad step more closely
SOON = 50  # steps; what begins later does not follow from an event of a moment
# A non-finite value spreads within a step from the forward pass to the weights.
_SPREADS = ("NUM004", "NUM002", "NUM001", "NUM003")

# Why, as a clause: by the stage of the cause, and of the effect where that says more.
BECAUSE: dict[Stage, str] = {
    Stage.PROGRAM: "a program with that fault cannot train as it should",
    Stage.DATA: "everything behind the data takes on their scale and their order",
    Stage.INITIALISATION: "the scale of the weights multiplies from layer to layer",
    Stage.OPTIMIZER: "every update is a multiple of the learning rate and of the gradient it is given",
    Stage.STEP: "steps out of proportion undo what was learned",
    Stage.SIGNAL: "no gradient passes through units that carry no signal",
    Stage.BLOCKED: "what gets no gradient is not moved",
    Stage.NONFINITE: "after a value that is not finite every number is suspect",
    Stage.COURSE: "a loss that diverges drives units to where they no longer respond",
    Stage.OUTCOME: "a training with that fault does not learn as it could",
}
_BECAUSE_OF_BOTH: dict[tuple[Stage, Stage], str] = {
    (Stage.DATA, Stage.STEP): "the gradient of a weight grows with its input and with the error",
    (Stage.DATA, Stage.SIGNAL): "inputs of that size push units to where they no longer respond",
    (Stage.DATA, Stage.NONFINITE): "values of that size soon leave the range of numbers",
    (Stage.INITIALISATION, Stage.SIGNAL): "units get inputs they cannot respond to",
    (Stage.INITIALISATION, Stage.NONFINITE): "the scale multiplies until values overflow",
    (Stage.OPTIMIZER, Stage.NONFINITE): "each step overshoots further, until values overflow",
    (Stage.STEP, Stage.SIGNAL): "units are thrown to where they do not respond",
    (Stage.STEP, Stage.NONFINITE): "each step overshoots further, until values overflow",
}


def because(cause: Finding, effect: Finding) -> str:
    """Why one leads to the other, in a clause."""
    stages = traits_of(cause).stage, traits_of(effect).stage
    return _BECAUSE_OF_BOTH.get(stages) or BECAUSE[stages[0]]


def brings_about(
    cause: Finding, effect: Finding, *, weights_came_first: bool = False, losses: LossHistory | None = None
) -> bool:
    """Whether the one explains the other.

    `weights_came_first`: a weight was non-finite before the step in which all else turned so. `losses`: what the loss
    did; a training that learned in spite of a fault, up to the moment at which something else began, tolerates it.
    """
    if cause is effect or not cause.severity.is_alarm or effect.detected_step < cause.first_step:
        return False
    first, second = traits_of(cause), traits_of(effect)
    if first.makes_smaller(cause) and second.needs_growth:
        return False
    was_learning = losses is not None and losses.was_learning(cause.first_step, effect.first_step)
    if was_learning and not is_certain(cause) and not first.builds_up and second.stage is not Stage.OUTCOME:
        return False
    if first.is_local and not _explains_locally(cause, effect, second.stage):
        return False
    if second.stage is Stage.NONFINITE:
        return _makes_nonfinite(cause, effect, first, weights_came_first)
    if first.stage is Stage.NONFINITE:  # after it every number is suspect, but not how the program is built
        was_there = second.is_standing and effect.first_step <= cause.first_step
        return not second.is_exact and not was_there and cause.first_step <= effect.first_step
    if first.is_of_targets and second.is_alikeness:
        return True  # one and the same answer for all is the best there is
    if first.is_alikeness and second.is_of_targets:
        return False
    if second.is_told_by_harm and is_certain(cause) and cause.detected_step < effect.detected_step:
        return True  # a broken contract that was known before is what does the harm
    if first.is_told_by_harm and is_certain(effect) and effect.detected_step < cause.detected_step:
        return False
    if second.stage <= Stage.DATA or first.stage is second.stage:
        return False  # how a program is written and its data follow from nothing in a training
    if first.stage > second.stage:  # against the order, only what was certain before the other began
        lasts = first.stage is not Stage.OUTCOME and not first.is_momentary
        return lasts and cause.detected_step < effect.first_step
    if second.stage is Stage.INITIALISATION:
        return False
    if second.stage is Stage.OUTCOME or first.is_standing:
        return True  # it was there all along, whenever a measurement first showed it
    if first.is_momentary and effect.first_step > cause.last_step + SOON:
        return False
    return cause.first_step <= effect.first_step + SLACK


def is_certain(finding: Finding) -> bool:
    """A contract that is broken beyond doubt, and badly."""
    return traits_of(finding).is_exact and finding.severity.rank >= Severity.SEVERE.rank


def _explains_locally(cause: Finding, effect: Finding, stage: Stage) -> bool:
    """A layer that is not trained carries no signal and holds up what is learned; it makes no step too large. It
    explains the same module, or one that is held beside it, as the factors of an adapter are.
    """
    if stage is Stage.OUTCOME:
        return True
    if stage not in LOCAL_EFFECTS:
        return False
    return any(_holders(one) & _holders(other) for one in cause.layers for other in effect.layers)


def _holders(path: str) -> set[str]:
    return {path, path.rpartition(".")[0], ".".join(path.split(".")[:-2])} - {""}


def _makes_nonfinite(cause: Finding, effect: Finding, first: type[Condition], weights_came_first: bool) -> bool:
    """The first step of a non-finite value is known for certain, so its cause must have begun before it."""
    if first.stage is not Stage.NONFINITE:
        was_there = first.is_standing or first.stage <= Stage.INITIALISATION
        in_time = cause.first_step < effect.first_step or (was_there and cause.first_step == effect.first_step)
        return first.stage < Stage.NONFINITE and in_time

    def moment(finding: Finding) -> tuple[int, int]:
        early = weights_came_first and finding.code == "NUM003"
        return finding.first_step, -1 if early else spread_order(finding.code)

    return moment(cause) < moment(effect)


def spread_order(code: str) -> int:
    return _SPREADS.index(code) if code in _SPREADS else 0
