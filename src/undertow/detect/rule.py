"""What a rule is, and what it may say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Protocol, TypeGuard, runtime_checkable

import numpy as np

from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule's word on one condition at one frame: it holds, with these details, or it has ended.

    A rule says nothing about a frame that does not measure what it needs. `key` tells apart conditions
    of the same code; each becomes one finding, however often it comes and goes.
    """

    key: str
    holds: bool = True
    severity: Severity = Severity.INFO
    layers: tuple[int, ...] = ()
    first_step: int = 0
    confidence: float = 1.0
    summary: str = ""
    evidence: tuple[Evidence, ...] = ()


class Rule(Protocol):
    """One code. The docstring has the sections "What it sees", "Why it is bad", "When it is wrong",
    "References": `undertow explain CODE` prints them.

    A rule about something slow may have `pace: ClassVar[Pace]`: of the frames that have a block of that stream it
    is then shown only one in so many steps, after the first steps of a run.
    """

    code: ClassVar[str]

    def grow(self, count: int) -> None:
        """Make room for layers up to `count`; what is known of the old ones stays."""
        ...

    def observe(self, view: FrameView) -> tuple[Verdict, ...]: ...


Said = tuple[int, tuple[Verdict, ...]]  # place of the frame in a batch, and what is said of it


@runtime_checkable
class PatientRule(Rule, Protocol):
    """A rule that need not be shown every frame. This is optional, for speed only: nothing else may change.

    While it rests, frames without news are not shown to `observe` but handed to `pass_over` together.
    """

    @property
    def resting(self) -> bool:
        """No condition is open and none is building up, so that frames without news need no verdict."""
        ...

    def news(self, batch: FrameBatch) -> Flags:
        """Per frame: whether it can matter to a rule that rests and has seen the frame before it."""
        ...

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        """Remember of the frames from `first` up to, not including, `last` what `observe` would have."""
        ...


class Waiting:
    """For patient rules to which frames mean nothing, while they rest, that have none of some streams and scalars.
    Rules that say nothing of such a frame, whatever is open, always rest.
    """

    waits_for: ClassVar[frozenset[str]]

    @property
    def resting(self) -> bool:
        return True

    def news(self, batch: FrameBatch) -> Flags:
        return batch.with_any(self.waits_for)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()


# A stream, and the least number of steps between two of its blocks; an odd one, so that optimizers that step in
# turn all have theirs.
Pace = tuple[str, int]


def pace_of(rule: Rule) -> Pace | None:
    return getattr(rule, "pace", None)


def is_of_one_training(rule: Rule) -> bool:
    """Whether it compares losses, rates, targets or gradients with those of earlier steps: where another training
    begins in the same run, it begins anew."""
    return getattr(rule, "of_one_training", False)


def is_patient(rule: Rule) -> TypeGuard[PatientRule]:
    return _has_patience(type(rule))


@cache
def _has_patience(kind: type) -> bool:
    """Once per kind: asking a protocol takes longer than most rules take over a frame."""
    return all(hasattr(kind, name) for name in ("resting", "news", "pass_over"))


@runtime_checkable
class AttentiveRule(Rule, Protocol):
    """A rule that goes through a batch by itself. This, too, is for speed only: nothing else may change."""

    def attend(self, batch: FrameBatch) -> Iterator[Said]:
        """What `observe` says of one frame after the other; frames of which it says nothing may be left out."""
        ...


def is_attentive(rule: Rule) -> TypeGuard[AttentiveRule]:
    return hasattr(type(rule), "attend")


def attend(rule: PatientRule, batch: FrameBatch) -> Iterator[Said]:
    """What a patient rule says of a batch: the same as if it had been shown every frame."""
    news = np.flatnonzero(rule.news(batch)).tolist()
    news.append(len(batch))
    place = upcoming = 0
    while place < len(batch):
        while news[upcoming] < place:
            upcoming += 1
        if place < news[upcoming] and rule.resting:
            yield from rule.pass_over(batch, place, news[upcoming])
            place = news[upcoming]
        else:
            yield place, rule.observe(batch.view(place))
            place += 1
