"""Where a training is in its steps, and what has been read so far in the one that is under way.

A step ends with an optimizer's `step()`; until the first sign of the next one, further optimizers may still step in it.
"""

import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer

from undertow.probe.reader import Marks
from undertow.probe.readings import NO_SLOTS, Number, RawFrame, Reading, Slots, inverse
from undertow.probe.schedule import Plan

_MOST_PASSES = 256  # backward passes of a step that are told apart


@dataclass(slots=True)
class StepReadings:
    """Filled by the backward passes of a step, used by the optimizers that step in it."""

    losses: list[Number] = field(default_factory=list)
    earlier_losses: int = 0  # of those, before the last backward pass
    taken_losses: list[Number] = field(default_factory=list)  # of `torch.autograd.grad`
    taken_count: int = 0  # of those
    loss_is_weighted: bool = False  # passes began with gradients of another's making, as in a stage of a pipeline
    gradients: Sequence[Reading] = ()  # before clipping
    are_forgotten: bool = False  # they were read, but slots stand for other tensors since
    micro: Sequence[Sequence[Reading]] = ()  # accumulated, per backward pass
    local: Sequence[Reading] = ()  # this rank's own, before an average over all
    stepped: list[Reading] | None = None  # as the optimizer sees them, if they have changed since
    marks: Marks | None = None  # to notice that
    backward_count: int = 0
    closure_read: bool = False  # the first closure of an optimizer that calls several has been read
    closure_ended: bool = False  # and its gradients, clipped or not, are what the optimizer got
    cleared_known: bool = False  # whether old gradients had been cleared was checked
    scaler: weakref.ref[GradScaler] | None = None
    scale: Number = 1.0

    @property
    def slots(self) -> Slots:
        return np.concatenate([reading.slots for reading in self.gradients]) if self.gradients else NO_SLOTS

    def covers(self, slots: Slots) -> bool:
        """Whether the gradients were read for just these slots."""
        return len(self.gradients) == 1 and self.gradients[0].slots is slots

    def count_pass(self) -> None:
        """Where gradients are only inspected, no step ever ends: what is kept must not grow."""
        self.backward_count += 1
        if len(self.losses) >= _MOST_PASSES:
            self.losses = [self._sum(self.losses)]
        self.earlier_losses = len(self.losses)

    def drop_pass(self) -> None:
        """The last backward pass came to nothing."""
        self.backward_count = max(self.backward_count - 1, 0)
        self.losses = self.losses[: self.earlier_losses]

    def count_taken(self, losses: Sequence[Number]) -> None:
        self.taken_count += 1
        self.taken_losses += losses
        if len(self.taken_losses) > _MOST_PASSES:
            self.taken_losses = [self._sum(self.taken_losses)]

    @property
    def pass_count(self) -> int:
        """Those that left gradients in the parameters. Beside them, gradients that were taken serve another purpose:
        the inner loop of meta-learning, or a look at single samples."""
        return self.backward_count or self.taken_count

    def add_earlier(self, earlier: "StepReadings") -> None:
        """Passes that belong to the same step."""
        self.losses = [*earlier.losses, *self.losses]
        self.backward_count += earlier.backward_count
        self.taken_losses = [*earlier.taken_losses, *self.taken_losses]
        self.taken_count += earlier.taken_count
        self.loss_is_weighted |= earlier.loss_is_weighted
        self.micro = ()

    def keep_last(self) -> None:
        """The passes before it were not of what is watched."""
        self.losses, self.backward_count = self.losses[-1:], min(self.backward_count, 1)
        self.taken_losses, self.taken_count, self.micro = [], 0, ()

    def note_pass(self) -> None:
        """Another backward pass was read."""
        self.micro = (*self.micro, self.gradients) if self.backward_count <= _MOST_PASSES else ()

    def forget_gradients(self) -> None:
        """They are then read again as the optimizer sees them."""
        self.are_forgotten = bool(self.gradients)
        self.gradients, self.micro, self.marks = (), (), None

    def loss(self) -> Number | None:
        """What was differentiated in this step: the sum over its backward passes, without the loss scale."""
        losses = self.losses if self.backward_count else self.taken_losses
        if not losses:
            return None
        total = self._sum(losses)
        return total * inverse(self.scale) if self.scaler is not None else total

    @staticmethod
    def _sum(losses: Sequence[Number]) -> Number:
        total = losses[0]
        for more in losses[1:]:
            total = total + more
        return total


class StepState:
    __slots__ = (
        "alarmed", "bad_seen", "began", "ended", "fed_changed", "fired", "first_step", "fresh", "hooked_saved_tensors",
        "in_step", "modes_changed", "next_plan", "now", "pending", "plan", "shared", "step", "stepped", "want_walk",
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
        self.alarmed = False  # a rule has raised an alarm; set by another thread
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
        identity = id(optimizer)
        self.shared = not (self.fresh or identity in self.stepped or self.step < self.first_step)
        if self.shared:
            self.stepped.add(identity)
            return
        if self.ended:
            self.open()
        self.step += 1
        self.stepped = {identity}
        self.fresh = False

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
