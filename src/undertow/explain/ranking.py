"""Which finding is the cause: root before symptom, along a small causal graph, not by the largest anomaly."""

from __future__ import annotations

from collections.abc import Sequence

from undertow.explain.causes import (
    FOLLOWS_FROM_ANYTHING,
    NONFINITE,
    OF_SMALL_STEPS,
    can_lead_to,
    is_local,
)
from undertow.explain.remedies.optimisation import rate_is_too_low
from undertow.explain.traits import traits_of
from undertow.schema.findings import Finding

_SLACK = 10  # steps; a statistical rule cannot tell the first bad step more closely
_SURE = 0.7  # confidence; below it a finding is a guess
_CERTAIN = 0.9
_BY_PROGRAM = (
    "gradient_optimizer",
    "gradient_state",
    "unregistered_parameters",
)  # evidence of how a program is written
_FEW = 2  # layers
_SILENT = ("GRD004", "ACT001")
_SOON = 50  # steps; what begins later does not follow from an event of a moment


class Ranking:
    """The findings of a run and which of them bring about which."""

    def __init__(self, findings: Sequence[Finding], *, weights_came_first: bool = False) -> None:
        """`weights_came_first`: the walk over the loss's graph found a weight non-finite before the step."""
        self.findings = list(findings)
        self._weights_came_first = weights_came_first
        self._causes = self._without_circles([self._causes_of(finding) for finding in self.findings])

    def in_order(self) -> list[int]:
        """Places of the findings. Alarms before remarks; causes before what they bring about; then by importance."""

        def key(place: int) -> tuple[object, ...]:
            finding = self.findings[place]
            tier = 0 if finding.severity.is_alarm else 5 - finding.severity.rank
            is_symptom = bool(self._causes[place])
            # Symptoms follow in the order they came.
            rest = (self._moment(finding), finding.code) if is_symptom else self._importance(finding)
            return tier, is_symptom, *rest, place

        return sorted(range(len(self.findings)), key=key)

    def root_of(self, place: int) -> int | None:
        """The most important of the causes at the beginning of all that led to a finding; None for a cause."""
        roots = [other for other in _reached(self._causes, place) if not self._causes[other]]
        return min(roots, key=lambda root: self._importance(self.findings[root]), default=None)

    def _causes_of(self, finding: Finding) -> set[int]:
        return {place for place, other in enumerate(self.findings) if self._brings_about(other, finding)}

    def _brings_about(self, cause: Finding, effect: Finding) -> bool:
        if cause is effect or not cause.severity.is_alarm:
            return False
        if effect.code == "UPD003" and any(evidence.quantity in _BY_PROGRAM for evidence in effect.evidence):
            return False  # no optimizer holds it, or it is frozen: nothing but the program is to blame
        nearly = cause.first_step <= effect.first_step + _SLACK
        if _is_the_other_factor(cause, effect):
            return nearly
        if _sets_apart(cause, effect):
            return nearly
        if is_local(cause.code, effect.code):
            return nearly and bool(set(cause.layers) & set(effect.layers))
        if effect.code in FOLLOWS_FROM_ANYTHING and not traits_of(cause).is_vague:
            return cause.first_step <= effect.detected_step
        guessed = effect.code == "DAT002" and effect.confidence < _SURE and can_lead_to(cause.code, "OPT003")
        if guessed and cause.first_step < effect.first_step:
            return True  # a leap of the loss, and no other sign of a bad batch
        standing = traits_of(effect).is_standing and effect.first_step <= cause.first_step
        if cause.code in NONFINITE and not traits_of(effect).is_exact and not standing:
            return self._moment(cause) < self._moment(effect)
        if not can_lead_to(cause.code, effect.code) or _other_way(cause, effect) or _is_the_reverse(cause, effect):
            return False
        if cause.code == "OPT001" and effect.code in _SILENT:
            return cause.detected_step < effect.first_step  # for certain before it: silence takes a loss down, too
        if traits_of(cause).is_momentary and effect.first_step > cause.last_step + _SOON:
            return False
        if traits_of(cause).is_standing or (cause.code, effect.code) == ("ACT003", "DAT004"):
            return cause.first_step <= effect.detected_step  # a code fades before it is seen to tell nothing
        if effect.code in NONFINITE or (traits_of(cause).is_exact and traits_of(effect).is_exact):
            return self._moment(cause) < self._moment(effect)  # the effect's first step is known for certain
        return nearly

    def _without_circles(self, causes: list[set[int]]) -> list[set[int]]:
        """Where findings seem to bring about each other, the first one did; of those that are sure, if any are."""
        reached = [_reached(causes, place) for place in range(len(causes))]
        moments = [(finding.confidence < _SURE, *self._moment(finding)) for finding in self.findings]
        return [
            {cause for cause in mine if place not in reached[cause] or moments[cause] < moments[place]}
            for place, mine in enumerate(causes)
        ]

    def _moment(self, finding: Finding) -> tuple[int, int]:
        """When it began: the step, and the place within a step."""
        early = self._weights_came_first and finding.code == "NUM003"
        return finding.first_step, -1 if early else traits_of(finding).stage

    def _importance(self, finding: Finding) -> tuple[object, ...]:
        """Of independent causes: a primary one before others, a certain one before a likely one."""
        step, stage = self._moment(finding)
        return (
            traits_of(finding).is_secondary and not _is_runaway(finding),
            not traits_of(finding).is_exact,
            -finding.severity.rank,
            stage,
            step,
            finding.code,
        )


def _is_runaway(finding: Finding) -> bool:
    """Weights that all grow straight outward are rewarded for it: that has no other cause."""
    return finding.code == "WGT001" and any(evidence.quantity == "update_ratio" for evidence in finding.evidence)


def _is_the_reverse(cause: Finding, effect: Finding) -> bool:
    """Weights that shrink make samples alike; only where the program makes them alike do weights shrink of it.

    Weight decay shrinks most of them, and its steps are large; large steps shrink one or two. And an output that is off
    is what keeps targets out of reach, where both are said of the same layer. Targets that cannot be learnt make
    answers alike; only a code or a place that is certain to tell nothing makes them look so.
    """
    if (cause.code, effect.code) == ("DAT003", "ACT001"):
        return bool(set(cause.layers) & set(effect.layers))
    if {cause.code, effect.code} == {"UPD001", "WGT005"}:
        shrinking = cause if cause.code == "WGT005" else effect
        by_steps = 0 < len(shrinking.layers) <= _FEW
        return by_steps != (shrinking is effect)
    if (cause.code, effect.code) == ("ACT003", "DAT004"):
        return cause.confidence < _CERTAIN
    if "ACT003" not in (cause.code, effect.code) or cause.code == effect.code:
        return False
    collapse, other = (cause, effect) if cause.code == "ACT003" else (effect, cause)
    by_program = any("go out alike" in evidence.how for evidence in collapse.evidence)
    by_program &= collapse.first_step <= other.first_step + _SLACK  # what a program does, it does from the start
    return other.code in ("WGT004", "WGT005") and by_program != (collapse is cause)


def _other_way(cause: Finding, effect: Finding) -> bool:
    """A learning rate that is too low does not what one that is too high does.

    But after steps that were far too large an optimizer remembers their gradients, and may not move at all. And that
    one group of parameters is ahead of the others says nothing about why these are slow.
    """
    if effect.code == "UPD003" and (cause.code == "UPD001" or (cause.code == "OPT007" and not rate_is_too_low(cause))):
        return effect.first_step <= cause.first_step
    if (cause.code, effect.code) == ("UPD001", "UPD002") and _is_of_group(cause):
        return True
    if cause.code == "OPT007":
        return rate_is_too_low(cause) != (effect.code in OF_SMALL_STEPS)
    return cause.code in ("GRD001", "GRD010") and effect.code == "OPT007" and not rate_is_too_low(effect)


def _is_the_other_factor(cause: Finding, effect: Finding) -> bool:
    """A factor that no optimizer holds stays as it is: where that is zero, its partner never gets a gradient."""
    if (cause.code, effect.code) != ("UPD003", "GRD004"):
        return False
    if not any(evidence.quantity in _BY_PROGRAM for evidence in cause.evidence):
        return False
    forgotten = {place for path in cause.layers for place in _places(path)}
    return all(forgotten & _places(path) for path in effect.layers)


def _places(path: str) -> set[str]:
    """What a parameter belongs to: its module, and the one that holds that module beside others."""
    return {path.rpartition(".")[0], ".".join(path.split(".")[:-2])} - {""}


def _sets_apart(cause: Finding, effect: Finding) -> bool:
    """A group that hardly moves: beside it another seems fast, and with it the whole is slow."""
    if cause.code != "UPD002" or not _is_of_group(cause):
        return False
    return (effect.code == "UPD001" and _is_of_group(effect)) or (effect.code == "UPD002" and not effect.layers)


def _is_of_group(finding: Finding) -> bool:
    """Whether it compares the rates of parameter groups."""
    return any(evidence.quantity == "optimizer_rate" for evidence in finding.evidence)


def _reached(causes: Sequence[set[int]], start: int) -> set[int]:
    """All that led to a finding, directly or not."""
    seen: set[int] = set()
    waiting = list(causes[start])
    while waiting:
        place = waiting.pop()
        if place not in seen:
            seen.add(place)
            waiting.extend(causes[place])
    return seen
