"""Weights right before and right after an optimizer moves them.

What was measured after one step is what lies before the next, unless somebody has edited the weights in between.
"""

from collections.abc import Sequence

from undertow.measure.kernels.interface import Want
from undertow.probe.reader import Marks, TensorReader
from undertow.probe.readings import RawFrame, Reading
from undertow.probe.tensor_list import TensorList

_FROZEN_EVERY = 64  # frames between two looks at weights that cannot move


class WeightWatch:
    def __init__(self, reader: TensorReader) -> None:
        self._reader = reader
        self._frames = 0
        self._measured_after = -2  # the step after which weights were last measured
        self._marks: Marks | None = None
        self._before: Sequence[Reading] = ()
        self._before_is_previous = False

    def forget(self) -> None:
        self._marks = None

    def before(self, weights: TensorList, previous_step: int) -> None:
        """`weights` are those that can move."""
        is_known = self._measured_after == previous_step and self._reader.unchanged(self._marks, weights)
        self._before_is_previous = is_known
        self._before = () if is_known else self._reader.read(weights, Want.MOMENTS | Want.SKETCH)

    def after(self, frame: RawFrame, weights: TensorList, moving: TensorList) -> None:
        """`weights` are all that the frame speaks of, `moving` those of them that can move."""
        chosen = weights if self._frames % _FROZEN_EVERY == 0 else moving
        read = self._reader.read_and_mark(chosen)
        if read is not None:  # weights are always there
            frame.weights, self._marks = read
        frame.weights_before = self._before
        frame.before_is_previous = self._before_is_previous
        self._measured_after = frame.step
        self._frames += 1
