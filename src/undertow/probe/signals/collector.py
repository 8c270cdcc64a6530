"""Collects the signals of the step that is under way, on the training thread, within a share of the budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

from undertow.probe.signals.loss import read_loss
from undertow.probe.signals.modules import ModeWatch
from undertow.probe.signals.readings import SignalReadings

_ALWAYS = 16  # the first steps are always looked at: a broken contract shows at once
_SHARE = 0.15  # of the budget


class Allowance:
    """Lets a measurement happen again once the budget of the steps since has paid for the last one."""

    def __init__(self) -> None:
        self._owed = 0.0

    def step(self, allowed_seconds: float) -> None:
        self._owed = max(0.0, self._owed - _SHARE * allowed_seconds)

    def spent(self, seconds: float) -> None:
        self._owed += seconds

    @property
    def is_paid(self) -> bool:
        return self._owed == 0.0


class ModuleRun(Protocol):
    """A module that ran in this step, as the forward tap describes it."""

    module: nn.Module
    position: int | None
    training: bool | None


class SignalCollector:
    def __init__(self) -> None:
        self._modes = ModeWatch()
        self._now = SignalReadings()
        self._steps = 0
        self.allowance = Allowance()

    def wants_loss(self, planned: bool, governed: bool) -> bool:
        """Whether to look at the loss that is about to be differentiated: the first one of a step."""
        if self._now.loss is not None:
            return False
        return self._steps < _ALWAYS or (planned and not governed) or self.allowance.is_paid

    def look_at_loss(self, roots: tuple[Any, ...], scaler: GradScaler | None) -> None:
        root = next((one for one in roots if _is_plain(one)), None)
        if root is not None:
            self._now.loss = read_loss(root, _address(scaler))

    def note_modes(self, modules: Iterable[ModuleRun]) -> None:
        """The mode of each module that took part, as the backward pass begins: validation may have come before."""
        for one in modules:
            if one.position is not None:
                one.training = one.module.training and one.training is not False
        self._modes.know(one.module for one in modules)

    def modes_changed(self) -> bool:
        """True when normalisations or dropouts are in a mode not seen before: time to look at the modules."""
        return self._modes.is_new()

    def note_data(self, partials: Any) -> None:
        self._now.data = partials

    def take(self) -> SignalReadings:
        """The signals of the step that ends."""
        self._steps += 1
        now, self._now = self._now, SignalReadings()
        return now


def _is_plain(root: Any) -> bool:
    return type(root) in (torch.Tensor, nn.Parameter) and root.grad_fn is not None and root.device.type != "meta"


def _address(scaler: GradScaler | None) -> int | None:
    scale = getattr(scaler, "_scale", None)
    return scale.data_ptr() if isinstance(scale, torch.Tensor) else None
