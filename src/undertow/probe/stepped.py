"""The gradients as an optimizer sees them: clipped, unscaled, or as the backward pass left them."""

from __future__ import annotations

import numpy as np
from torch.optim.optimizer import Optimizer

from undertow.measure.kernels.interface import Want
from undertow.probe.reader import TensorReader
from undertow.probe.readings import NO_SLOTS, Slots, inverse, number_now
from undertow.probe.step_state import StepReadings
from undertow.probe.subjects import Subjects


def read_stepped(
    subjects: Subjects, reader: TensorReader, now: StepReadings, optimizer: Optimizer, slots: Slots
) -> None:
    """Measured again only when they may have changed since the backward pass."""
    present = subjects.with_gradient(slots)
    factor = inverse(number_now(getattr(optimizer, "grad_scale", None), 1.0))
    if now.covers(present):
        missing, known = NO_SLOTS, present
    else:
        missing = np.setdiff1d(present, now.slots)
        known = np.setdiff1d(present, missing)
    if len(missing):  # no backward pass was seen, or it is still running: this is the first look
        now.gradients += reader.read(subjects.gradients(missing), factor=factor)
    if len(known):
        gradients = subjects.gradients(known)
        if now.scaler is not None or not reader.unchanged(now.marks, gradients):
            now.stepped = reader.read(gradients, Want.MOMENTS, factor=factor)
