"""A step as a frame: its scalars, and which tensors it speaks of in what state."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch.optim.optimizer import Optimizer

from undertow.probe.readings import Number, RawFrame, Slots, zeros
from undertow.probe.step_state import StepReadings, StepState
from undertow.probe.subjects import Subjects
from undertow.schema.quantities import GradientState


def frame_of(subjects: Subjects, course: StepState, optimizer: Optimizer, slots: Slots, skipped: Number) -> RawFrame:
    """What one optimizer has done to some slots."""
    now, plan, is_shared = course.now, course.plan, course.shared
    frame = RawFrame(course.step, time.time(), subjects.layout, _scalars(subjects, now, optimizer, is_shared, skipped))
    frame.loss_is_weighted = now.loss_is_weighted
    if not (plan.gradient or plan.weight):
        return frame
    frame.exposed = slots if is_shared else subjects.exposed(slots)
    if plan.gradient:
        frame.has_gradient = True
        frame.state = states(subjects, now, frame.exposed)
        # Gradients put in place by hand, without a backward pass, replace the old ones.
        frame.carried = zeros(len(frame.exposed))
        if now.cleared_known:
            frame.carried = subjects.zero_grads.carried(frame.exposed, subjects.layers.tensors)
        frame.optimizer = subjects.holders(frame.exposed)
        frame.gradients = list(now.gradients)
        frame.stepped = now.stepped
        frame.local = now.local
        if len(now.micro) > 1 and not is_shared:
            frame.micro_gradients = list(now.micro)
    return frame


def states(subjects: Subjects, now: StepReadings, exposed: Slots) -> NDArray[np.float32]:
    """Whether each tensor has a gradient, and if not, why."""
    frozen = subjects.frozen(exposed)
    covered = now.covers(exposed)
    if covered and not frozen:
        return zeros(len(exposed))  # all present
    state = np.full(len(exposed), GradientState.PRESENT, np.float32)
    if not covered:
        state[~np.isin(exposed, now.slots)] = GradientState.NONE
    if frozen:
        state[frozen] = GradientState.FROZEN
    return state


def _scalars(
    subjects: Subjects, now: StepReadings, optimizer: Optimizer, is_shared: bool, skipped: Number
) -> dict[str, Number]:
    scalars: dict[str, Number] = {}
    if not is_shared:
        loss = now.loss()
        if loss is not None:
            scalars["loss"] = loss
        scalars["backward_count"] = float(now.backward_count)
    scalars |= subjects.learning_rates(optimizer)
    if now.scaler is not None:
        scalars["loss_scale"] = now.scale
        scalars["step_skipped"] = skipped if isinstance(skipped, torch.Tensor) else float(skipped > 0)
    return scalars
