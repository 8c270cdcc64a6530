"""A step like the ones before it, in few operations: for a small model the cost of watching is the number of calls.

Nothing here has a meaning of its own. Each method does what the method of the same name in `recorder` would do in this
case, or says that this is another case, having changed nothing: then `hand_over` tells the long way what has been
read. A step is usual when one optimizer steps the same parameters after one backward pass, with neither loss scale nor
closure, and every parameter gets or lacks a gradient as it did before.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import Optimizer

from undertow.measure.kernels.interface import Want
from undertow.probe.framing import states
from undertow.probe.reader import Marks, TensorReader
from undertow.probe.readings import RawFrame, Reading, Slots
from undertow.probe.schedule import Governor
from undertow.probe.step_signals import StepSignals
from undertow.probe.step_state import StepReadings, StepState
from undertow.probe.step_timer import StepTimer
from undertow.probe.subjects import Subjects
from undertow.probe.tensor_list import TensorList, are_trainable, have_gradient, single
from undertow.probe.weight_watch import WeightWatch

_FIRST = 5  # the first steps are never usual: layers are still being found
_ALL, _MOMENTS = int(Want.ALL), int(Want.MOMENTS)
_now = time.perf_counter


# How far a step has come this way: what has to come next is known, and anything else is not usual. Plain numbers,
# because members of an enum take long to look up.
_ELSEWHERE = 0  # the step is not usual, or it is not known what is
_BETWEEN = 1  # two steps
_BACKWARD = 2  # the backward pass is under way
_GRADIENTS = 3  # it has ended
_STEPPING = 4  # the optimizer is at work


class SteadyStep:
    def __init__(
        self,
        course: StepState,
        subjects: Subjects,
        reader: TensorReader,
        weights: WeightWatch,
        signals: StepSignals,
        timer: StepTimer,
        governor: Governor,
        emit: Callable[[RawFrame], None],
        post: Callable[[RawFrame], float],
    ) -> None:
        self._course, self._subjects, self._reader, self._weights = course, subjects, reader, weights
        self._signals, self._timer, self._governor = signals, timer, governor
        self._emit, self._post = emit, post
        self._known: _Usual | None = None
        self._stage = _ELSEWHERE
        self._loss = 0.0
        self._read: Any = None  # the gradients of this step, as the kernel gave them
        self._stepped: list[Reading] | None = None
        self._idle = 0  # steps to come in which nothing but the usual can be due
        self._rested = 0  # steps of this kind that nobody has accounted for, and how long they took
        self._seconds = 0.0

    def forget(self) -> None:
        self._settle()
        self._known, self._read, self._stepped = None, None, None
        self._stage = _ELSEWHERE

    def learn(self, optimizer: Optimizer, slots: Slots) -> None:
        """After a step that was taken the long way: whether the next ones can be like it."""
        course, subjects, now = self._course, self._subjects, self._course.now
        self.forget()
        if course.done < _FIRST or course.shared or not course.plan.gradient or course.pending is not None:
            return
        if now.backward_count != 1 or now.scaler is not None or now.closure_read or now.closure_ended:
            return
        if subjects.layout.spread is not None or not subjects.has_one_optimizer:
            return
        present = subjects.slots_with_gradient()
        if now.covers(present) and subjects.with_gradient(slots) is present:
            known = _Usual(subjects, now, optimizer, slots, present)
            if known.gradients.plain is not None:  # else the number of calls is not what costs
                self._known = known
                self._await()

    def _await(self) -> None:
        """Whether the step that comes next may be usual."""
        known, course = self._known, self._course
        usual = known is not None and known.version == self._subjects.version and course.ended
        if usual and not (course.next_plan.activation or course.want_walk or self._signals.sees_modules):
            self._stage = _BETWEEN
            self._idle = self._idle_steps()

    def _idle_steps(self) -> int:
        """For how many steps nothing can be due but gradients, weights and updates: nobody need ask in those."""
        known, governor = self._known, self._governor
        if known is None or not governor.is_the_same_always:
            return 0
        return min(
            self._signals.collector.idle_steps(known.slots, governed=False),
            self._subjects.steps_until_due(self._course.done) - 1,
        )

    def hand_over(self) -> None:
        """This step goes on the long way, which has to know what was read so far."""
        self._settle()
        if self._stage > _BETWEEN:
            known = self._known
            assert known is not None
            now = self._course.now = StepReadings([self._loss])
            now.backward_count = 1
            now.cleared_known = self._course.plan.gradient
            if self._read is not None:
                now.gradients = [Reading(known.present, self._read)]
                now.marks = Marks(known.gradients, self._read.data)
                now.micro.append(now.gradients)
            now.stepped = self._stepped
        self._stage, self._read, self._stepped = _ELSEWHERE, None, None

    def before_backward(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> bool:
        known, course = self._known, self._course
        if self._stage != _BETWEEN or known is None or gradients or len(roots) != 1:
            return False
        root = roots[0]
        if type(root) is not torch.Tensor:
            return False
        loss = single(root, torch.float32)
        if loss is None and root.is_cpu and root.numel() == 1:
            loss = root.item()
        if type(loss) is not float or not isfinite(loss):
            return False
        course.ended, course.fresh, course.plan = False, True, course.next_plan
        self._stage, self._loss = _BACKWARD, loss
        if not self._idle:
            self._signals.glance_at_loss(roots)
        if course.plan.gradient and not self._subjects.zero_grads.is_known(have_gradient(known.tensors)):
            self._subjects.note_cleared(self._reader)
        return True

    def after_backward(self) -> bool:
        known, course = self._known, self._course
        if self._stage != _BACKWARD or known is None:
            return False
        self._subjects.zero_grads.note_added(known.tensors)
        if course.plan.gradient:
            if known.differs_in_gradients():
                return False
            began = _now()
            self._read = known.gradients.plain.read(_ALL)
            self._timer.gradient.seconds += _now() - began
            if self._read is None:
                return False
        elif not course.bad_seen and self._subjects.gradients_went_bad(self._reader):
            return False
        self._stage = _GRADIENTS
        return True

    def before_step(self, optimizer: Optimizer, has_closure: bool) -> bool:
        known, course = self._known, self._course
        if self._stage != _GRADIENTS or known is None or has_closure or not known.is_of(optimizer):
            return False
        plan = course.plan
        if are_trainable(known.tensors) != known.trainable or (plan.gradient and known.differs_in_gradients()):
            return False
        began = _now()
        if plan.gradient and not known.gradients.plain.is_unchanged(self._read.data):
            packed = known.gradients.plain.read(_MOMENTS)
            if packed is None:
                return False
            self._stepped = [Reading(known.present, packed)]
        course.in_step, course.fresh, course.shared = True, False, False
        course.fired.add(id(optimizer))
        course.stepped = {id(optimizer)}
        course.step += 1
        self._stage = _STEPPING
        if plan.gradient:
            self._timer.gradient.seconds += (ended := _now()) - began
            began = ended
        if plan.weight:
            self._weights.before(known.moved, course.step - 1)
            self._timer.weight.seconds += _now() - began
        return True

    def after_step(self, optimizer: Optimizer) -> bool:
        known, course, subjects = self._known, self._course, self._subjects
        if self._stage != _STEPPING or known is None or known.optimizer() is not optimizer:
            return False
        frame = self._frame(known, optimizer)
        course.in_step = False
        subjects.zero_grads.step(known.slots)
        if course.plan.weight:
            began = _now()
            self._weights.after(frame, known.exposed_weights, known.exposed_moved)
            self._timer.weight.seconds += _now() - began
        self._stage, self._read, self._stepped = _ELSEWHERE, None, None
        if self._idle:
            self._send(frame)
        else:
            if not self._signals.skips_step(known.slots):
                with self._timer.signal:
                    self._signals.look_at_step(optimizer, known.slots, frame)
            self._emit(frame)
            self._await()
        return True

    def _frame(self, known: _Usual, optimizer: Optimizer) -> RawFrame:
        course, layout, plan = self._course, self._subjects.layout, self._course.plan
        scalars = {"loss": self._loss, "backward_count": 1.0}
        scalars |= self._subjects.learning_rates(optimizer)
        if not plan.gradient:
            frame = RawFrame(course.step, time.time(), layout, scalars)
            if plan.weight:
                frame.exposed = known.exposed
            return frame
        carried = self._subjects.zero_grads.carried(known.exposed, known.tensors)
        gradients = [Reading(known.present, self._read)]
        return RawFrame(
            course.step, time.time(), layout, scalars, known.exposed, True, known.state, carried, known.holders,
            gradients, (), self._stepped,
        )  # fmt: skip

    def _send(self, frame: RawFrame) -> None:
        """After a step in which nothing but the usual was due, as little is due in the next one."""
        course, now = self._course, _now()
        frame.scalars["step_time"] = now - course.began
        self._seconds += now - course.began
        course.ended = True
        self._idle -= 1
        self._rested += 1
        waited = self._post(frame)  # for the background thread, which counts its time itself
        self._timer.always.seconds -= waited
        course.began = now + waited
        self._stage = _BETWEEN
        if not self._idle:
            self._settle()
            self._idle = self._idle_steps()

    def _settle(self) -> None:
        """Account for the steps in which nobody did."""
        steps, seconds, self._idle = self._rested, self._seconds, 0
        self._rested, self._seconds = 0, 0.0
        if steps:
            self._signals.collector.rest(steps)
            self._governor.spent(self._timer.take(), seconds, first=False, steps=steps)


class _Usual:
    """What follows for a step from which tensors there are, which of them have a gradient, and which can be trained."""

    def __init__(
        self, subjects: Subjects, now: StepReadings, optimizer: Optimizer, slots: Slots, present: Slots
    ) -> None:
        self.version = subjects.version
        self.tensors = subjects.layers.tensors
        self.have, self.trainable = have_gradient(self.tensors), are_trainable(self.tensors)
        self.slots, self.present, self.exposed = slots, present, subjects.exposed(slots)
        self.state: NDArray[np.float32] = states(subjects, now, self.exposed)
        self.holders = subjects.holders(self.exposed)
        self.gradients: TensorList = subjects.gradients(present)
        self.moved = subjects.weights(subjects.moving(slots))
        self.exposed_weights = subjects.weights(self.exposed)
        self.exposed_moved = subjects.weights(subjects.moving(self.exposed))
        self.optimizer = weakref.ref(optimizer)
        self._sizes = [len(group["params"]) for group in optimizer.param_groups]
        self._all_have = b"\0" not in self.have

    def differs_in_gradients(self) -> bool:
        """Whether other tensors have a gradient; where all have one, reading them shows when one is missing."""
        return not self._all_have and have_gradient(self.tensors) != self.have

    def is_of(self, optimizer: Optimizer) -> bool:
        """And whether it is as it was; a loss scaler leaves its scale with an optimizer that takes it."""
        if self.optimizer() is not optimizer or getattr(optimizer, "grad_scale", None) is not None:
            return False
        groups = optimizer.param_groups
        if len(groups) != len(self._sizes):
            return False
        for group, size in zip(groups, self._sizes):  # noqa: SIM110 (in one expression it would take twice as long)
            if len(group["params"]) != size:
                return False
        return True
