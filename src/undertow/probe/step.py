"""What has been read so far in the step that is under way, and how single numbers are taken from tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler

from undertow.probe.distributed.portions import is_spread, whole_here
from undertow.probe.reader import Marks
from undertow.probe.readings import Number, Reading, Slots

NOTHING: Slots = np.empty(0, np.int64)


@dataclass(slots=True)
class StepReadings:
    """Filled by the backward passes of a step, used by the optimizers that step in it."""

    losses: list[Number] = field(default_factory=list)
    loss_is_weighted: bool = False  # passes began with gradients of another's making, as in a stage of a pipeline
    gradients: list[Reading] = field(default_factory=list)  # before clipping
    micro: list[list[Reading]] = field(default_factory=list)  # accumulated, per backward pass
    local: list[Reading] = field(default_factory=list)  # this rank's own, before an average over all
    stepped: list[Reading] | None = None  # as the optimizer sees them, if they have changed since
    marks: Marks | None = None  # to notice that
    backward_count: int = 0
    closure_read: bool = False  # the first closure of an optimizer that calls several has been read
    closure_ended: bool = False  # and its gradients, clipped or not, are what the optimizer got
    cleared_known: bool = False  # whether old gradients had been cleared was looked at
    scaler: GradScaler | None = None
    scale: Number = 1.0

    @property
    def slots(self) -> Slots:
        return np.concatenate([reading.slots for reading in self.gradients]) if self.gradients else NOTHING

    def covers(self, slots: Slots) -> bool:
        """Whether the gradients were read for just these slots."""
        return len(self.gradients) == 1 and self.gradients[0].slots is slots

    def forget_gradients(self) -> None:
        """They are then read again as the optimizer sees them."""
        self.gradients, self.micro, self.marks = [], [], None

    def loss(self) -> Number | None:
        """What was differentiated in this step: the sum over its backward passes, without the loss scale."""
        if not self.losses:
            return None
        total = self.losses[0]
        for more in self.losses[1:]:
            total = total + more
        return total * inverse(self.scale) if self.scaler is not None else total


def number_now(value: Any, default: float) -> Number:
    """A number that may be a tensor: read at once on the CPU, kept as it is elsewhere."""
    if value is None:
        return default
    if isinstance(value, torch.Tensor):
        return float(value.item()) if value.device.type == "cpu" else value.detach().clone()
    return float(value)


def inverse(value: Number) -> Number:
    return 1.0 if isinstance(value, float) and value in (0.0, 1.0) else 1.0 / value


def scale_of(scaler: GradScaler) -> Number:
    return number_now(getattr(scaler, "_scale", None), 1.0)


def loss_of(root: Any, weight: Any) -> Number | None:
    """The value being differentiated: a scalar, or the weighted sum a backward pass was started with."""
    if not isinstance(root, torch.Tensor) or root.device.type == "meta":
        return None
    if is_spread(root):  # asking the wrapper could call for the other ranks
        root = whole_here(root)
        if root is None:
            return None
    if root.numel() == 1 and weight is None and root.device.type == "cpu" and not root.is_complex():
        return float(root.item())
    value = root.detach()
    if isinstance(weight, torch.Tensor) and weight.shape == value.shape:
        value = (value * weight.detach()).sum()
    elif value.numel() != 1:
        return None
    return number_now(value.real if value.is_complex() else value, 0.0)
