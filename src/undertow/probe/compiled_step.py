"""What an optimizer's step reads and says, worked out once and kept while nothing changes.

For a small model the cost of watching is the number of calls, and most steps are like the one before: the same
parameters, of which the same can be trained. Everything that follows from those is kept here, with the native calls
that read them; `holds` tells when it has to be worked out again.
"""

import time
import weakref

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import Optimizer

from undertow.measure.kernels.interface import Want
from undertow.probe.reader import TensorReader
from undertow.probe.readings import NO_SLOTS, Number, RawFrame, Slots, inverse, number_now, zeros
from undertow.probe.step_state import StepReadings, StepState
from undertow.probe.subjects import Subjects
from undertow.probe.tensor_list import TensorList, are_trainable
from undertow.schema import GradientState


class CompiledStep:
    def __init__(self, subjects: Subjects, optimizer: Optimizer, slots: Slots) -> None:
        self._subjects = subjects
        self.optimizer = weakref.ref(optimizer)
        self._sizes = [len(group["params"]) for group in optimizer.param_groups]
        self._version = subjects.version
        self._references = subjects.layers.references
        self._trainable = are_trainable(self._references)
        self.slots = slots
        self.is_measured = True  # in the step that is under way
        self.moved: TensorList = subjects.lists.weights(subjects.lists.trainable(slots))
        exposed = self._exposed = subjects.exposed(slots)
        self._holders = subjects.holders(exposed)
        self.exposed_weights = subjects.lists.weights(exposed)
        self.exposed_moved = subjects.lists.weights(subjects.lists.trainable(exposed))
        self._read: Slots | None = None  # the gradients of the last step, and what they made of the exposed slots
        self._states = zeros(0)

    def holds(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer steps the same parameters, and, where that matters, the same of them can be trained."""
        if self.optimizer() is not optimizer or self._version != self._subjects.version:
            return False
        groups = optimizer.param_groups
        if len(groups) != len(self._sizes):
            return False
        if self.is_measured and are_trainable(self._references) != self._trainable:
            return False
        for group, size in zip(groups, self._sizes):  # noqa: SIM110 (in one expression it would take twice as long)
            if len(group["params"]) != size:
                return False
        return True

    def read_gradients(self, reader: TensorReader, now: StepReadings, optimizer: Optimizer) -> bool:
        """The gradients as the optimizer sees them, measured again only when they may have changed since the backward
        pass: clipped, unscaled, or put there by hand. False where the backward pass left others than there are now.
        """
        subjects, marks = self._subjects, now.marks
        if marks is not None and marks.of.slots is self.slots and marks.native is not None and now.scaler is None:
            is_unchanged = marks.of.plain.is_unchanged(marks.native)
            if is_unchanged:  # and all there, as nearly always
                return True
        present = subjects.lists.with_gradient(self.slots)
        factor = inverse(number_now(getattr(optimizer, "grad_scale", None), 1.0))
        is_covered = now.covers(present)
        if is_covered:
            missing, known = NO_SLOTS, present
        else:
            # Those that no optimizer holds have been forgotten with the others.
            seen = subjects.lists.with_gradient(self._exposed) if now.are_forgotten else present
            missing, now.are_forgotten = np.setdiff1d(seen, now.slots), False
            known = np.setdiff1d(present, missing)
        if len(missing):  # no backward pass was seen, or it is still running: they are read here first
            now.gradients = [*now.gradients, *reader.read(subjects.lists.gradients(missing), factor=factor)]
        if len(known):
            gradients = subjects.lists.gradients(known)
            if now.scaler is not None or not reader.unchanged(now.marks, gradients):
                now.stepped = reader.read(gradients, Want.MOMENTS, factor=factor)
        return is_covered

    def frame(self, state: StepState, optimizer: Optimizer, skipped: Number) -> RawFrame:
        """What one optimizer has done to its tensors: scalars, and which tensors it speaks of in what state."""
        subjects, now, due, is_shared = self._subjects, state.now, state.plan, state.shared
        scalars: dict[str, Number] = {}
        if not is_shared:
            loss = now.loss()
            if loss is not None:
                scalars["loss"] = loss
            scalars["backward_count"] = float(now.pass_count)
        scalars |= subjects.optimizers.learning_rates(optimizer)
        if now.scaler is not None:
            scalars["loss_scale"] = now.scale
            scalars["step_skipped"] = skipped if isinstance(skipped, torch.Tensor) else float(skipped > 0)
        if not due.gradient:
            frame = RawFrame(state.step, time.time(), subjects.layers.layout, scalars)
            if due.weight:
                frame.exposed = self.slots if is_shared else self._exposed
        else:
            exposed, holders, gradients = self._exposed, self._holders, list(now.gradients)
            if is_shared:
                exposed, holders, self._read = self.slots, subjects.holders(self.slots), None
            if len(gradients) != 1 or gradients[0].slots is not self._read:
                self._states = self._states_of(now, exposed)
                self._read = gradients[0].slots if len(gradients) == 1 and not is_shared else None
            # Gradients put in place by hand, without a backward pass, replace the old ones.
            is_known = now.cleared_known
            micro = () if is_shared or len(now.micro) < 2 else now.micro
            carried = subjects.zero_grads.carried(exposed, self._references) if is_known else zeros(len(exposed))
            frame = RawFrame(
                state.step, time.time(), subjects.layers.layout, scalars, exposed, True, self._states,
                carried, holders, gradients, micro, now.stepped,
            )  # fmt: skip
            if now.local:
                frame.local = now.local
        if now.loss_is_weighted:
            frame.loss_is_weighted = True
        return frame

    def _states_of(self, now: StepReadings, exposed: Slots) -> NDArray[np.float32]:
        """Whether each tensor has a gradient, and if not, why."""
        frozen = self._subjects.frozen(exposed)
        covered = now.covers(exposed)
        if covered and not frozen:
            return zeros(len(exposed))  # all present
        states = np.full(len(exposed), GradientState.PRESENT, np.float32)
        if not covered:
            states[~np.isin(exposed, now.slots)] = GradientState.NONE
        if frozen:
            states[frozen] = GradientState.FROZEN
        return states
