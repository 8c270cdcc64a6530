"""What a condition is: one thing that can be wrong, described, detected and explained in one file."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.limit import Limit
from undertow.detect.engine.per_layer import PerLayer
from undertow.detect.engine.stage import Stage
from undertow.detect.engine.tracker import Tracker
from undertow.detect.engine.view import FrameView
from undertow.detect.engine.wake import Wake
from undertow.schema import Evidence, Finding, Remedy, Severity

# A stream, and the least number of steps between two of its blocks; an odd one, so that optimizers that step in
# turn all have theirs.
Pace = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a condition says of one frame: it holds, with these details, or it has ended."""

    severity: Severity = Severity.INFO
    layers: tuple[int, ...] = ()
    first_step: int = 0
    confidence: float = 1.0
    summary: str = ""
    evidence: tuple[Evidence, ...] = ()
    holds: bool = True


ENDED = Judgement(holds=False)
LayerIds = NDArray[np.integer]
Describe = Callable[[FrameView, tuple[int, ...]], Judgement]


class Condition(PerLayer):
    """One thing that can be wrong; it becomes at most one finding, however often it comes and goes.

    The docstring is its page: a first line, then "What it sees", "Why it is bad", "When it is wrong", "References".
    A subclass implements `observe`, for one frame after the other, and says nothing (None) of a frame that does not
    measure what it needs. Classes are collected from `rules/` by themselves; an abstract base for several variants has
    no `variant`.
    """

    code: ClassVar[str]
    variant: ClassVar[str]  # kebab-case, stable: it is in the JSON
    formerly: ClassVar[str] = ""  # names in journals of earlier versions, of what is now part of it, too

    stage: ClassVar[Stage]
    is_exact: ClassVar[bool] = False  # a contract that holds or does not, without statistics
    is_standing: ClassVar[bool] = False  # there from the start, whenever a measurement first shows it
    is_momentary: ClassVar[bool] = False  # explains what begins soon after, not much later
    builds_up: ClassVar[bool] = False  # its effect grows over hundreds of steps: a training may learn until then
    is_vague: ClassVar[bool] = False  # says that something is wrong, not why
    is_local: ClassVar[bool] = False  # explains findings of the same modules only
    is_told_by_harm: ClassVar[bool] = False  # harmless in most trainings: what else does the harm may be the cause
    is_of_targets: ClassVar[bool] = False  # nothing is to be learnt of the inputs, so that outputs become alike
    is_alikeness: ClassVar[bool] = False  # outputs became alike
    needs_growth: ClassVar[bool] = False  # nothing that makes signals, gradients or steps smaller can bring it about

    meaning: ClassVar[str] = ""  # for the training: the second sentence of the story, without a full stop
    remedies: ClassVar[tuple[Remedy, ...]] = ()  # the best first
    places: ClassVar[tuple[str, ...]] = ()  # roles of the lines that can be its cause, the likeliest first

    needs: ClassVar[frozenset[str]] = frozenset()  # streams and scalars: frames with none of them are never shown
    wakes_on: ClassVar[Wake | None] = None  # frames to see while calm; None: all of them
    pace: ClassVar[Pace | None] = None
    is_of_one_training: ClassVar[bool] = False  # begins anew where another training begins in the same run
    tracker: ClassVar[type[Tracker] | None] = None  # of its conditions all share one: declared by `Shared`
    tracker_name: ClassVar[str] = ""

    judgement: Judgement | None = None  # the one that is open
    _members: object = None

    @property
    def is_calm(self) -> bool:
        """Nothing is open or building up, so that only frames that `wakes_on` flags need to be seen."""
        return self.judgement is None

    def observe(self, view: FrameView) -> Judgement | None:
        raise NotImplementedError

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        """Those that fit this very case, by the values of its evidence."""
        return cls.remedies

    @classmethod
    def makes_smaller(cls, finding: Finding) -> bool:
        """Whether this very case makes signals, gradients or steps smaller."""
        return False

    @classmethod
    def limits(cls) -> dict[str, Limit]:
        """All numbers that it decides by, with their reasons."""
        return {name: value for kind in reversed(cls.__mro__) for name, value in vars(kind).items()
                if isinstance(value, Limit)}  # fmt: skip

    # -- opening and closing ------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.judgement is not None

    def hold(self, members: object, describe: Callable[[], Judgement]) -> Judgement:
        """It holds. `members` is whatever decides whether the words of the judgement still fit."""
        if self.judgement is None or members != self._members:
            self.judgement, self._members = describe(), members
        return self.judgement

    def hold_of(
        self, view: FrameView, ids: Iterable[int] | NDArray[np.integer], describe: Describe
    ) -> Judgement | None:
        """It holds of these layers, which `describe` gets in execution order; without any, it ends."""
        members = tuple(view.layout.in_order(ids))
        return self.hold(members, lambda: describe(view, members)) if members else self.end()

    def stay(self) -> Judgement | None:
        """Nothing new: what is open stays open."""
        return self.judgement

    def end(self) -> Judgement | None:
        if self.judgement is None:
            return None
        self.judgement = self._members = None
        return ENDED
