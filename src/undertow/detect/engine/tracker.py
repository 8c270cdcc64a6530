"""What several conditions follow together: kept once, and moved on before they look at a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.per_layer import PerLayer
from undertow.detect.engine.view import FrameView
from undertow.detect.engine.wake import Wake

if TYPE_CHECKING:
    from undertow.detect.engine.condition import Condition


class Tracker(PerLayer):
    """Follows the training for all conditions that name it; the engine shows them the same frames, one by one.

    `open_variants` holds those of its conditions that are open at this frame, so that one can stand back for another:
    they look at a frame in the order of their `variant` in `order`, the others after them by name.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    wakes_on: ClassVar[Wake | None] = None
    is_of_one_training: ClassVar[bool] = False
    order: ClassVar[tuple[str, ...]] = ()
    open_variants: set[str]  # the engine keeps it

    @property
    def is_calm(self) -> bool:
        return True

    def follow(self, view: FrameView) -> None:
        """Take a frame into account, before the conditions look at it."""

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        """Remember of calm frames, from `first` up to, not including, `last`, what `follow` would have."""


_Kind = TypeVar("_Kind", bound=Tracker)


class Shared(Generic[_Kind]):
    """Declared in the body of a condition, `gradients = Shared(MissingGradients)`: the engine puts the tracker under
    that name, one and the same for all conditions that name its class.
    """

    def __init__(self, kind: type[_Kind]) -> None:
        self.kind = kind

    def __set_name__(self, owner: type[Condition], name: str) -> None:
        owner.tracker, owner.tracker_name = self.kind, name

    def __get__(self, instance: object, owner: type | None = None) -> _Kind:
        raise AttributeError("a condition gets its tracker from the engine that runs it")
