"""For how long in a row something has held: of the whole training, or layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.per_layer import PerLayer, grown

Flags = NDArray[np.bool_]


class Consecutive:
    """Counts the frames in a row that show something, and keeps the step of the first of them."""

    __slots__ = ("count", "since")

    def __init__(self) -> None:
        self.count = 0
        self.since = 0

    def hold(self, step: int) -> int:
        """One more frame has shown it; how many there are now."""
        if self.count == 0:
            self.since = step
        self.count += 1
        return self.count

    def end(self) -> None:
        self.count = 0

    def follow(self, holds: bool, step: int) -> int:
        """A frame that shows it, or does not; how many in a row there are now."""
        if holds:
            return self.hold(step)
        self.end()
        return 0


@dataclass(slots=True)
class LayerStreak(PerLayer):
    """Per layer: at how many measured steps in a row something held, since which step, and over how many steps.

    Sampling may be sparse: a few measured steps far apart tell as much as many that follow one another.
    """

    length: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    since: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    span: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def grow(self, count: int) -> None:
        self.length = grown(self.length, count, 0)
        self.since = grown(self.since, count, 0)
        self.span = grown(self.span, count, 0)

    def hold(self, ids: NDArray[np.int32], step: int) -> None:
        self.since[ids[self.length[ids] == 0]] = step
        self.length[ids] += 1
        self.span[ids] = step - self.since[ids]

    def end(self, ids: NDArray[np.int32]) -> None:
        self.length[ids] = 0
        self.span[ids] = 0

    def follow(self, ids: NDArray[np.int32], measured: Flags, holds: Flags, step: int) -> None:
        """A step of a block of layers: of which it was measured at all, and of which of these it holds."""
        self.end(ids[measured & ~holds])
        self.hold(ids[measured & holds], step)

    def began(self, layers: Sequence[int]) -> int:
        """The first step of the streaks of these layers."""
        return int(self.since[list(layers)].min())

    def lasted(self, steps: int | NDArray[np.int64]) -> NDArray[np.bool_]:
        """At `steps` measured steps in a row, or at a third of them (three at least) over four times as many."""
        few = np.maximum(3, np.asarray(steps) // 3)
        return (self.length >= steps) | ((self.length >= few) & (self.span >= 4 * np.asarray(steps)))
