"""Weights right before and right after an optimizer moves them.

What was measured after one step is what lies before the next, unless somebody has edited the weights in between.
"""

from __future__ import annotations

from undertow.measure.kernels.interface import Want
from undertow.probe.reader import Marks, TensorReader
from undertow.probe.readings import RawFrame, Reading, Slots
from undertow.probe.subjects import Subjects

_FROZEN_EVERY = 64  # frames between two looks at weights that cannot move


class WeightWatch:
    def __init__(self, subjects: Subjects, reader: TensorReader) -> None:
        self._subjects, self._reader = subjects, reader
        self._frames = 0
        self._measured_after = -2  # the step after which weights were last measured
        self._marks: Marks | None = None
        self._before: list[Reading] = []
        self._before_is_previous = False

    def forget(self) -> None:
        self._marks = None

    def before(self, slots: Slots, previous_step: int) -> None:
        weights = self._subjects.weights(self._subjects.moving(slots))
        is_known = self._measured_after == previous_step and self._reader.unchanged(self._marks, weights)
        self._before_is_previous = is_known
        self._before = [] if is_known else self._reader.read(weights, Want.MOMENTS | Want.SKETCH)

    def after(self, frame: RawFrame) -> None:
        look_at_frozen = self._frames % _FROZEN_EVERY == 0
        chosen = frame.exposed if look_at_frozen else self._subjects.moving(frame.exposed)
        frame.weights, self._marks = self._reader.read_and_mark(self._subjects.weights(chosen))
        frame.weights_before = self._before
        frame.before_is_previous = self._before_is_previous
        self._measured_after = frame.step
        self._frames += 1
