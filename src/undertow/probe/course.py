"""Where a training is in its steps.

A step ends with an optimizer's `step()`; until the first sign of the next one, further optimizers may still step in it.
"""

from __future__ import annotations

import time

from torch.optim.optimizer import Optimizer

from undertow.probe.readings import RawFrame
from undertow.probe.schedule import Plan
from undertow.probe.step import StepReadings


class Course:
    __slots__ = (
        "bad_seen", "began", "ended", "fed_changed", "fired", "first_step", "fresh", "hooked_saved_tensors", "in_step",
        "modes_changed", "next_plan", "now", "pending", "plan", "shared", "step", "stepped", "want_walk",
    )  # fmt: skip

    def __init__(self, first_step: int, plan: Plan) -> None:
        self.first_step = first_step
        self.step = first_step - 1
        self.plan = self.next_plan = plan
        self.now = StepReadings()
        self.pending: RawFrame | None = None  # a step taken inside the backward pass, sent when that returns
        self.began = time.perf_counter()
        self.fresh = False  # a backward pass has run since the last step
        self.in_step = False
        self.ended = False
        self.shared = False  # another optimizer has stepped before in this step
        self.stepped: set[int] = set()  # optimizers that have, by id
        self.fired: set[int] = set()  # optimizers that a loss scaler did not hold back
        self.want_walk = True  # the graph of the next loss may show what is not known yet
        self.modes_changed = False
        self.fed_changed = False  # other parameters got a gradient than ever before
        self.bad_seen = False  # a gradient that is not finite
        self.hooked_saved_tensors = False  # unpacking those could run the user's code again

    def open(self) -> None:
        """The first sign of the next step."""
        if self.ended:
            self.ended = False
            self.plan = self.next_plan
            self.now = StepReadings()

    def count(self, optimizer: Optimizer) -> None:
        """An optimizer steps: in a step of its own, or in that of the one before it."""
        again = id(optimizer) in self.stepped
        self.shared = not (self.fresh or again or self.step < self.first_step)
        if not self.shared:
            self.open()
            self.step += 1
            self.stepped = set()
            self.fresh = False
        self.stepped.add(id(optimizer))

    def forget(self) -> None:
        """What was read since the last step was not of a watched model."""
        self.now = StepReadings()
        self.fresh = False

    @property
    def done(self) -> int:
        """Steps before the one that has just been taken."""
        return self.step - self.first_step

    def measure_now(self) -> None:
        """Something has gone wrong in this very step: it shows where it began."""
        self.plan = Plan(gradient=True, weight=True, activation=self.plan.activation)
