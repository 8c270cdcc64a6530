"""What several conditions follow together: kept once, and moved on before they look at a frame."""

from typing import ClassVar

from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.engine.wake import Wake


class Tracker:
    """Follows the training for all conditions that name it; the engine shows them the same frames, one by one.

    `open_variants` holds those of its conditions that are open at this frame, so that one can stand back for another:
    they look at a frame in the order of their `variant` in `order`, the others after them by name.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    wakes_on: ClassVar[Wake | None] = None
    is_of_one_training: ClassVar[bool] = False
    order: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.open_variants: set[str] = set()

    def grow(self, count: int) -> None:
        """Make room for layers up to `count`."""

    @property
    def is_calm(self) -> bool:
        return True

    def follow(self, view: FrameView) -> None:
        """Take a frame into account, before the conditions look at it."""

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        """Remember of calm frames, from `first` up to, not including, `last`, what `follow` would have."""
