"""A step like the ones before it, in few operations: for a small model the cost of watching is the number of calls.

Nothing here has a meaning of its own. Each method does what the method of the same name in `recorder` would do in this
case, or says that this is another case, having changed nothing. A step is usual when one optimizer steps the same
parameters after one backward pass, with neither loss scale nor closure, and every parameter gets or lacks a gradient
as it did before.
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
from undertow.probe import taps
from undertow.probe.course import Course
from undertow.probe.framing import states
from undertow.probe.lookout import Lookout
from undertow.probe.purse import Purse
from undertow.probe.reader import TensorReader
from undertow.probe.readings import RawFrame, Slots, zeros
from undertow.probe.step import StepReadings
from undertow.probe.subjects import Subjects
from undertow.probe.tensor_list import TensorList, are_trainable, have_gradient
from undertow.probe.weight_watch import WeightWatch

_FIRST = 5  # the first steps are never usual: layers are still being found
_now = time.perf_counter


class SteadyStep:
    def __init__(
        self,
        course: Course,
        subjects: Subjects,
        reader: TensorReader,
        weights: WeightWatch,
        lookout: Lookout,
        purse: Purse,
        emit: Callable[[RawFrame], None],
    ) -> None:
        self._course, self._subjects, self._reader, self._weights = course, subjects, reader, weights
        self._lookout, self._purse, self._emit = lookout, purse, emit
        self._known: _Usual | None = None

    def forget(self) -> None:
        self._known = None

    def learn(self, optimizer: Optimizer, slots: Slots) -> None:
        """After a step that was taken the long way: whether the next ones can be like it."""
        course, subjects, now = self._course, self._subjects, self._course.now
        self._known = None
        if course.done < _FIRST or course.shared or not course.plan.gradient or course.pending is not None:
            return
        if now.backward_count != 1 or now.scaler is not None or now.closure_read or now.closure_ended:
            return
        if subjects.layout.spread is not None or not subjects.has_one_optimizer:
            return
        present = subjects.slots_with_gradient()
        if now.covers(present) and subjects.with_gradient(slots) is present:
            self._known = _Usual(subjects, now, optimizer, slots, present)

    def before_backward(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> bool:
        known, course, subjects = self._known, self._course, self._subjects
        if known is None or not course.ended or course.in_step or gradients or len(roots) != 1:
            return False
        root, plan = roots[0], course.next_plan
        if plan.activation or course.want_walk or known.version != subjects.version or self._lookout.sees_modules:
            return False
        if type(root) is not torch.Tensor or not root.is_cpu or root.numel() != 1:
            return False
        loss = root.item()
        if type(loss) is not float or not isfinite(loss):
            return False
        course.ended, course.fresh, course.plan = False, True, plan
        now = course.now = StepReadings([loss])
        now.backward_count = 1
        self._lookout.look_at_loss(roots)
        if plan.gradient:
            subjects.note_cleared(self._reader)
            now.cleared_known = True
        return True

    def after_backward(self) -> bool:
        known, course = self._known, self._course
        if known is None or not course.fresh or course.in_step or not course.plan.gradient:
            return False
        now = course.now
        if now.backward_count != 1 or now.scaler is not None or known.version != self._subjects.version:
            return False
        if self._lookout.sees_modules or have_gradient(known.tensors) != known.have:
            return False
        began = _now()
        now.gradients, now.marks = self._reader.read_and_mark(known.gradients)
        now.micro.append(now.gradients)
        self._purse.gradient.seconds += _now() - began
        return True

    def before_step(self, optimizer: Optimizer, has_closure: bool) -> bool:
        known, course = self._known, self._course
        if known is None or has_closure or not course.fresh or course.ended or not known.is_of(optimizer):
            return False
        now, plan = course.now, course.plan
        if now.backward_count != 1 or now.scaler is not None or known.version != self._subjects.version:
            return False
        if getattr(optimizer, "grad_scale", None) is not None or are_trainable(known.tensors) != known.trainable:
            return False
        if plan.gradient and (have_gradient(known.tensors) != known.have or not now.covers(known.present)):
            return False
        course.in_step, course.fresh, course.shared = True, False, False
        course.fired.add(id(optimizer))
        course.stepped = {id(optimizer)}
        course.step += 1
        now.stepped = None
        began = _now()
        if plan.gradient:
            now.stepped = self._reader.read_if_changed(now.marks, known.gradients, Want.MOMENTS)
            self._purse.gradient.seconds += (ended := _now()) - began
            began = ended
        if plan.weight:
            self._weights.before(known.moved, course.step - 1)
            self._purse.weight.seconds += _now() - began
        return True

    def after_step(self, optimizer: Optimizer) -> bool:
        known, course, subjects = self._known, self._course, self._subjects
        if known is None or not course.in_step or course.shared or not known.is_of(optimizer) or taps.in_backward():
            return False
        now, plan = course.now, course.plan
        if now.backward_count != 1 or now.scaler is not None or known.version != subjects.version:
            return False
        if course.pending is not None or len(now.losses) != 1 or are_trainable(known.tensors) != known.trainable:
            return False
        if plan.gradient and not now.covers(known.present):
            return False
        course.in_step = False
        scalars = {"loss": now.losses[0], "backward_count": 1.0, **subjects.learning_rates(optimizer)}
        frame = RawFrame(course.step, time.time(), subjects.layout, scalars)
        if plan.gradient or plan.weight:
            frame.exposed = known.exposed
        if plan.gradient:
            frame.has_gradient = True
            frame.state, frame.optimizer = known.state, known.holders
            frame.carried = subjects.cleared.carried(known.exposed) if now.cleared_known else zeros(len(known.exposed))
            frame.gradients, frame.stepped, frame.local = list(now.gradients), now.stepped, now.local
        subjects.cleared.step(known.slots)
        began = _now()
        if plan.weight:
            self._weights.after(frame, known.exposed_weights, known.exposed_moved)
            self._purse.weight.seconds += (ended := _now()) - began
            began = ended
        if not self._lookout.skips_step(known.slots):
            self._lookout.look_at_step(optimizer, known.slots, frame)
            self._purse.signal.seconds += _now() - began
        self._emit(frame)
        return True


class _Usual:
    """What follows for a step from which tensors there are, which of them have a gradient, and which can be trained."""

    def __init__(
        self, subjects: Subjects, now: StepReadings, optimizer: Optimizer, slots: Slots, present: Slots
    ) -> None:
        self.version = subjects.version
        self.tensors = subjects.catalogue.tensors
        self.have, self.trainable = have_gradient(self.tensors), are_trainable(self.tensors)
        self.slots, self.present, self.exposed = slots, present, subjects.exposed(slots)
        self.state: NDArray[np.float32] = states(subjects, now, self.exposed)
        self.holders = subjects.holders(self.exposed)
        self.gradients: TensorList = subjects.gradients(present)
        self.moved = subjects.weights(subjects.moving(slots))
        self.exposed_weights = subjects.weights(self.exposed)
        self.exposed_moved = subjects.weights(subjects.moving(self.exposed))
        self._optimizer = weakref.ref(optimizer)
        self._sizes = [len(group["params"]) for group in optimizer.param_groups]

    def is_of(self, optimizer: Optimizer) -> bool:
        return self._optimizer() is optimizer and self._sizes == [len(g["params"]) for g in optimizer.param_groups]
