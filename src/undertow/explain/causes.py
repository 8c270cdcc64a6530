"""What can bring about what, as data: the causal order of a training step, and the table of consequences.

A consequence need not be found for its own consequences to follow: `path_between` walks the table.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import NamedTuple

from undertow.detect.engine.stage import Stage

STAGES: dict[Stage, tuple[str, ...]] = {
    Stage.DATA: ("DAT001", "DAT002", "DAT003", "DAT004", "DAT005", "DAT006", "DST002"),
    Stage.INITIALISATION: ("WGT002", "WGT003"),
    Stage.FORWARD: ("MOD001", "MOD002", "NUM004", "ACT001", "ACT002", "ACT003", "ACT004", "ACT005"),
    Stage.LOSS: ("LSS001", "LSS002", "LSS003", "LSS004", "NUM002"),
    Stage.BACKWARD: (
        "GRD001", "GRD002", "GRD003", "GRD004", "GRD005", "GRD006", "GRD007", "GRD008", "GRD009", "GRD010",
        "NUM001", "NUM005",
    ),
    Stage.OPTIMIZER: ("OPT007", "OPT008"),
    Stage.UPDATE: (
        "UPD001", "UPD002", "UPD003", "UPD004", "NUM003", "WGT001", "WGT004", "WGT005", "WGT006", "DST001",
    ),
    Stage.OUTCOME: ("OPT001", "OPT002", "OPT003", "OPT004", "OPT005", "OPT006"),
}  # fmt: skip

STAGE_OF: dict[str, Stage] = {code: stage for stage, codes in STAGES.items() for code in codes}

# Contracts of a training step that hold or do not: no statistics in them, so they go before what is only likely.
EXACT = frozenset({
    "NUM001", "NUM002", "NUM003", "NUM004", "GRD003", "GRD004", "GRD007", "UPD003", "UPD004", "WGT002",
    "LSS001", "LSS002", "LSS003", "LSS004", "MOD001", "MOD002", "OPT008", "DST001", "DST002",
})  # fmt: skip

# How a program is built: there from the start, whenever a measurement first shows it.
STANDING = frozenset({
    "DAT001", "DAT003", "DAT004", "DAT005", "DAT006", "WGT002", "WGT003", "LSS001", "LSS002", "LSS003", "LSS004",
    "MOD002", "OPT008", "GRD010", "NUM005",
})  # fmt: skip

# Events of a moment: they explain what begins soon after, not what begins much later.
PASSING = frozenset({"DAT002", "GRD006", "OPT003"})

# These say that something is wrong, and not why.
VAGUE = frozenset({"OPT001", "OPT002", "OPT003", "OPT004", "OPT005", "GRD005", "GRD006", "GRD008"})

# These are found beside a cause with a better name: when both are there, the other one is it.
SECONDARY = frozenset({"OPT001", "OPT002", "OPT004", "OPT005", "GRD005", "GRD008", "WGT001", "WGT006"})

# After one of these every number is suspect.
NONFINITE = frozenset({"NUM001", "NUM002", "NUM003", "NUM004"})

# A training that does not learn follows from any fault that has a name.
FOLLOWS_FROM_ANYTHING = frozenset({"OPT002", "OPT005"})

_NONFINITE = tuple(sorted(NONFINITE))
_UNSTABLE = ("OPT001", "OPT003", "OPT004")


class Link(NamedTuple):
    cause: str
    effects: tuple[str, ...]
    because: str


LINKS: tuple[Link, ...] = (
    # data
    Link("DAT001", ("ACT001", "ACT002"), "inputs of that size push units to where they no longer respond"),
    Link("DAT001", ("WGT003", "ACT003", "ACT004"), "inputs of that size make every output behind them as large"),
    Link("DAT001", ("GRD001", "GRD002", "UPD001", "OPT007"), "the gradient of a weight grows with its input"),
    Link("DAT001", (*_NONFINITE, *_UNSTABLE, "NUM005"), "values of that size soon leave the range of numbers"),
    Link("DAT002", ("GRD006", "OPT003", "UPD001", "GRD002"), "one batch unlike the others makes one step unlike them"),
    Link("DAT002", ("ACT001", *_NONFINITE, "OPT001"), "the step that follows such a batch can undo the training"),
    Link("DAT003", ("UPD001", "GRD002", "GRD010", "OPT007"), "the gradient grows with the size of the targets"),
    Link("DAT003", (*_NONFINITE, *_UNSTABLE, "ACT001", "ACT002"), "errors of that size make steps of that size"),
    Link("DAT003", ("LSS003",), "targets of that size lie beyond any range"),
    Link("DAT004", ("GRD008", "OPT006"), "where nothing can be learnt, gradients point every way"),
    Link("DAT005", ("GRD005", "GRD006", "GRD009", "OPT003", "OPT004"), "every batch pulls towards its own class"),
    Link("DAT005", ("ACT003", "OPT001", "UPD001", "OPT007"), "what one batch teaches, the next one overwrites"),
    Link("DAT006", ("DAT004",), "what never occurs cannot be learnt, and looks like chance when it does"),
    # initialisation
    Link("WGT002", ("ACT003", "GRD004", "ACT001", "GRD001"), "equal units compute, and learn, the same thing"),
    Link("WGT003", ("GRD001", "GRD002", "UPD001", "UPD002", "OPT007"), "the scale multiplies from layer to layer"),
    Link("WGT003", ("ACT001", "ACT002", "ACT003", "ACT004", "GRD004"), "units get inputs they cannot respond to"),
    Link("WGT003", (*_NONFINITE, *_UNSTABLE, "GRD006", "NUM005"), "the scale multiplies until values overflow"),
    # forward
    Link("MOD001", ("GRD002", "UPD001", "OPT007", "ACT001", "ACT002", "ACT003"), "nothing keeps values in range"),
    Link("MOD001", ("GRD008",), "of a signal that is mostly erased little but noise is left"),
    Link("MOD001", (*_UNSTABLE, *_NONFINITE, "GRD006", "OPT006", "WGT003", "GRD001"), "the layer does not do its work"),
    Link("MOD002", ("GRD006", "GRD008", "GRD002", "ACT003", "ACT001", *_UNSTABLE), "its statistics are noise"),
    Link("MOD002", ("UPD001", "OPT007"), "steps follow the noise"),
    Link("MOD002", (*_NONFINITE, "GRD001"), "it divides by a spread that is not there"),
    Link("ACT001", ("GRD004", "GRD001", "ACT003", "UPD002"), "no gradient passes through units that are off"),
    Link("ACT002", ("GRD001", "GRD004", "ACT003", "UPD002"), "hardly any gradient passes through saturated units"),
    Link("ACT004", ("GRD001", "GRD006", "OPT003", "GRD004"), "attention that is all or nothing passes no gradient"),
    Link("ACT005", ("GRD004",), "experts that get no tokens get no gradient"),
    Link("NUM004", ("NUM001", "NUM002", "NUM003"), "everything computed from it is non-finite too"),
    # loss
    Link("LSS001", ("GRD001", "UPD002", "ACT002"), "a second softmax flattens the gradient"),
    Link("LSS001", ("NUM001", "NUM002", "OPT001", "LSS003"), "the logarithm meets values it is not made for"),
    Link("LSS002", ("ACT003", "GRD008", "DAT004"), "every prediction is drawn to the mean of all targets"),
    Link("LSS003", ("OPT001", "UPD001", "OPT007", "GRD002", "WGT001", "DAT004", *_NONFINITE), "it climbs"),
    Link("LSS003", ("ACT001", "ACT002", "GRD004"), "units are pushed to where they no longer respond"),
    Link("LSS004", ("UPD001", "OPT007", "GRD002", "GRD010", *_UNSTABLE), "steps are as many times too large"),
    Link("NUM002", ("NUM001", "NUM003", "GRD004", "OPT001"), "every gradient of such a loss is non-finite"),
    # backward
    Link("GRD001", ("UPD002",), "layers that get next to no gradient hardly move"),
    Link("GRD001", ("ACT003",), "the signal fades with depth in both directions"),
    Link("GRD002", ("UPD001", *_UNSTABLE, "GRD006", "WGT001", "ACT001"), "steps grow with the gradient"),
    Link("GRD002", (*_NONFINITE, "NUM005", "GRD010"), "it grows until it overflows"),
    Link("GRD005", ("OPT004",), "steps that undo one another lead nowhere"),
    Link("GRD006", ("OPT003", "UPD001", "GRD002", "ACT001", *_NONFINITE), "one step of that size can undo many"),
    Link("GRD007", ("GRD002", "UPD001", "OPT007", "GRD005", "WGT001"), "the sum grows with every step"),
    Link("GRD007", (*_UNSTABLE, *_NONFINITE, "ACT001", "ACT002", "ACT003", "GRD004"), "steps grow until it diverges"),
    Link("GRD008", ("OPT004",), "steps follow the noise"),
    Link("GRD009", ("OPT004",), "the terms of the loss undo one another's steps"),
    Link("GRD010", ("UPD002",), "what is left of the gradient moves nothing"),
    Link("NUM001", ("NUM002", "NUM003", "GRD004", "OPT001"), "the optimizer writes it into the weights"),
    Link("NUM005", ("GRD001", "GRD004", "UPD002", "NUM001"), "what is too small for the format becomes zero"),
    Link("NUM005", ("NUM002", "NUM004"), "what is too large for the format becomes infinite"),
    # optimizer
    Link("OPT007", ("UPD001", "UPD002"), "every update is a multiple of the learning rate"),
    Link("OPT008", ("OPT007", "UPD001", "UPD002", "WGT005", "WGT001", "GRD005", *_UNSTABLE), "the gradient is ignored"),
    # update
    Link("UPD001", ("ACT001", "ACT002", "ACT003", "ACT004", "ACT005"), "units are thrown to where they do not respond"),
    Link("UPD001", ("GRD002", "GRD005", "GRD006", "WGT001", "WGT004", "WGT006"), "each step overshoots the last"),
    Link("UPD001", (*_UNSTABLE, *_NONFINITE), "each step overshoots further, until values overflow"),
    Link("WGT005", ("ACT003", "GRD001", "ACT001", "GRD004"), "weights near zero pass nothing on"),
    Link("NUM003", ("NUM001", "NUM002", "NUM004", "GRD004", "OPT001"), "every later output is non-finite"),
    Link("DST001", ("OPT001", "OPT003"), "the ranks no longer train the same model"),
    Link("DST002", ("NUM001", "NUM002", "NUM003"), "the average over ranks is non-finite too"),
)  # fmt: skip

# These hold between the two findings only: nothing follows from the first by way of the second.
DIRECT_LINKS: tuple[Link, ...] = (
    Link("DAT005", ("DAT002", "DAT006"), "where one class follows another, each looks like all there is"),
    Link("ACT005", ("GRD003", "UPD003"), "experts that get no tokens get no gradient and do not move"),
    Link("OPT001", _NONFINITE, "it grew until it overflowed"),
    Link("GRD004", ("OPT001", "OPT003"), "what no longer learns no longer corrects itself"),
    Link("ACT001", ("OPT001", "OPT003"), "units that fall silent take with them what they had learnt"),
    Link("GRD010", ("OPT007",), "what is left of the gradient moves nothing, whatever the rate"),
    Link("GRD001", ("OPT007",), "where next to no gradient arrives, no rate moves the layers"),
    Link("WGT004", ("DAT002", "GRD002", "GRD006", "WGT001", "UPD001"), "one weight outweighs all"),
    Link("WGT004", ("OPT001", "OPT003"), "a weight out of all proportion spoils every output"),
    Link("ACT003", ("WGT005", "WGT004"), "weights that no longer tell samples apart have nothing to do but shrink"),
    Link("WGT001", ("ACT001", "ACT002", "ACT004", "WGT006", "OPT001", *_NONFINITE), "outputs grow with the weights"),
    Link("WGT006", ("OPT003", "OPT004", "GRD006"), "each time what was learnt with it is lost"),
    Link("OPT001", ("GRD004", "ACT001"), "a loss that runs away throws units to where they are silent"),
    Link("UPD001", ("WGT005",), "steps of that size undo a layer faster than it learns"),
    Link("WGT005", ("UPD001", "OPT001"), "steps that shrink the weights undo what they have learnt"),
    Link("OPT007", ("UPD003",), "a rate of nothing moves nothing"),
    Link("UPD002", ("UPD003",), "steps that small round away"),
    Link("UPD001", ("UPD003",), "beside steps and gradients of that size, those that follow move nothing"),
    Link("GRD002", ("UPD003",), "beside gradients of that size, what clipping leaves of the others moves nothing"),
    Link("GRD010", ("UPD003",), "what is left of the gradient moves nothing"),
    Link("WGT003", ("UPD003",), "steps vanish beside weights of that size, or beside gradients of others"),
    Link("NUM005", ("UPD003",), "steps too small for the format move nothing"),
    *(Link(cause, ("DAT004",), "a training that cannot learn looks like data that cannot be learnt") for cause in (
        "DAT001", "DAT003", "DAT005", "WGT002", "WGT003", "MOD001", "MOD002", "LSS001", "LSS004", "ACT001", "GRD001",
        "GRD003", "GRD004", "GRD007", "GRD010", "OPT007", "OPT008", "NUM005", "UPD001", "UPD002", "UPD003", "ACT002",
        "ACT004", "ACT003",
    )),
)  # fmt: skip

# And these only where both name the same layers: a zero gradient explains why that layer never moves, and no other.
LOCAL_LINKS: tuple[Link, ...] = (
    Link("GRD003", ("UPD003",), "what gets no gradient is not moved"),
    Link("GRD004", ("UPD003",), "what gets a zero gradient is not moved"),
    Link("ACT001", ("UPD003",), "units that are off get no gradient, so they are not moved"),
    Link("ACT001", ("DAT003",), "an output that is off reaches no target"),
)

# And this where the two are partners in one module, as the factors of an adapter are.
PARTNER_LINKS: tuple[Link, ...] = (
    Link("UPD003", ("GRD004",), "a factor that is never moved from zero gives its partner no gradient"),
)

# A learning rate can be too low as well: then only this follows.
OF_SMALL_STEPS = frozenset({"UPD002", "UPD003"})

_CONSEQUENCES: dict[str, dict[str, str]] = {}
for _link in LINKS:
    for _effect in _link.effects:
        _CONSEQUENCES.setdefault(_link.cause, {}).setdefault(_effect, _link.because)
_DIRECT = {(link.cause, effect): link.because for link in DIRECT_LINKS for effect in link.effects}
_LOCAL = {(link.cause, effect): link.because for link in LOCAL_LINKS for effect in link.effects}
_PARTNER = {(link.cause, effect): link.because for link in PARTNER_LINKS for effect in link.effects}


@cache
def path_between(cause: str, effect: str) -> tuple[str, ...]:
    """The codes on the shortest way from a cause to a consequence, both included; empty when there is none."""
    came_from: dict[str, str] = {cause: cause}
    waiting = deque([cause])
    while waiting:
        code = waiting.popleft()
        if code == effect and code != cause:
            steps = [code]
            while steps[-1] != cause:
                steps.append(came_from[steps[-1]])
            return tuple(reversed(steps))
        for follower in _CONSEQUENCES.get(code, ()):
            if follower not in came_from:
                came_from[follower] = code
                waiting.append(follower)
    return ()


def can_lead_to(cause: str, effect: str) -> bool:
    """Whether one can bring about the other, wherever they are."""
    return (cause, effect) in _DIRECT or bool(path_between(cause, effect))


def is_local(cause: str, effect: str) -> bool:
    """Whether one can bring about the other, but only in the same layers."""
    return (cause, effect) in _LOCAL


def neighbours(code: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a code can bring about, and what can bring it about, one step away."""
    links = (*LINKS, *DIRECT_LINKS, *LOCAL_LINKS, *PARTNER_LINKS)
    pairs = [(link.cause, effect) for link in links for effect in link.effects]
    after = {effect for cause, effect in pairs if cause == code}
    before = {cause for cause, effect in pairs if effect == code}
    return tuple(sorted(after)), tuple(sorted(before))


def because(cause: str, effect: str) -> str:
    """Why one leads to the other, in a clause."""
    known = _LOCAL.get((cause, effect)) or _DIRECT.get((cause, effect)) or _PARTNER.get((cause, effect))
    if known:
        return known
    path = path_between(cause, effect)
    if len(path) >= 2:
        return _CONSEQUENCES[path[-2]][path[-1]]
    if cause in NONFINITE:
        return "after a value that is not finite every number is suspect"
    return "a training with that fault does not learn as it could"
