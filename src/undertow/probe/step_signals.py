"""What a step shows beside gradients and weights: its loss, the graph of that, modes of modules, optimizer state."""

from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer

from undertow.measure.kernels.tensors import is_freed
from undertow.probe.distributed.portions import is_spread, whole_here
from undertow.probe.flow_shares import FlowShares
from undertow.probe.forward import ForwardTap, ModuleReading
from undertow.probe.nonfinite import find_origin, is_nonfinite
from undertow.probe.reader import TensorReader
from undertow.probe.readings import Note, Number, RawFrame, Slots, number_now
from undertow.probe.schedule import Governor
from undertow.probe.signals.graph_values import SHOWS_HOOKS
from undertow.probe.signals.signal_collector import SignalCollector
from undertow.probe.step_state import StepState
from undertow.probe.step_timer import StepTimer
from undertow.probe.subjects import Subjects

_MOST_CHOICES = 20  # of parameters that get a gradient


class StepSignals:
    def __init__(
        self,
        state: StepState,
        subjects: Subjects,
        reader: TensorReader,
        forward: ForwardTap,
        timer: StepTimer,
        governor: Governor,
    ) -> None:
        self.collector = SignalCollector(subjects.layers.layer_of)
        self.flow = FlowShares(subjects.layers)
        self._state, self._subjects, self._reader = state, subjects, reader
        self._forward, self._timer = forward, timer
        self._governor = governor
        self._nonfinite_seen = False
        self._presences: set[bytes] = set()  # which parameters got a gradient, each choice once

    # -- as a backward pass begins ------------------------------------------------------------------------

    def take_losses(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> Number | None:
        """Returns the loss, where there is one, and no more."""
        found = losses_of(roots, gradients)
        if gradients and any(isinstance(root, torch.Tensor) and root.numel() > 1 for root in roots):
            self._state.now.loss_is_weighted = True
        self._state.now.losses += found
        return found[0] if len(roots) == 1 and found else None

    def read_loss(self, roots: tuple[Any, ...]) -> None:
        """What the loss and the graph of the model show; see `probe.signals`."""
        forward, state = self._forward, self._state
        if forward.readings:
            self.collector.note_modes(forward.readings.values())
            if forward.sample is None:
                known = self._subjects.known_modules()
                self.collector.note_unregistered(forward.readings, known, forward.roots_called)
        state.modes_changed |= self.collector.modes_changed()
        if state.hooked_saved_tensors and not SHOWS_HOOKS:
            return
        planned = state.plan.gradient or state.plan.activation
        if self.collector.wants_loss(planned, self._governor.every is None):
            with self._timer.signal:
                self.collector.read_loss(roots, state.now.scaler and state.now.scaler())
        with_graph = state.plan.activation and (forward.sample is None or forward.sample.with_graph)
        if with_graph and forward.readings and state.now.backward_count == 1:
            with self._timer.activation:
                self.collector.read_graph(roots, forward.readings.values())
                self.flow.begin(roots)

    def backward_ended(self) -> None:
        self._timer.activation.seconds += self.flow.end()

    @property
    def reads_graph(self) -> bool:
        """Whether there is anything in the graph to read again."""
        return self.collector.sees_graph or self.flow.finds_forks

    def find_nonfinite(self, roots: tuple[Any, ...]) -> Note | None:
        """When a loss has just turned non-finite, its own graph still shows where that began."""
        state = self._state
        if self._nonfinite_seen or not state.now.losses or not is_nonfinite(state.now.losses[-1]):
            return None
        self._nonfinite_seen = True
        state.measure_now()
        may_unpack = not state.hooked_saved_tensors
        modules = self.module_readings() if self._forward.sample is None else {}  # else the first may not be among them
        origin = find_origin(self._subjects, self._reader, roots, modules, may_unpack)
        return None if origin is None else Note("first_nonfinite", state.step + 1, origin)

    @property
    def sees_modules(self) -> bool:
        """Modules are sampled in this step, or have been."""
        forward = self._forward
        return bool(forward.readings) or forward.running or forward.paused

    def module_readings(self) -> dict[int, ModuleReading]:
        """By layer."""
        known = self._subjects.layers.module_layer
        return {known[module]: reading for module, reading in self._forward.readings.items() if module in known}

    def note_present(self, present: Slots) -> None:
        """Other parameters get a gradient than ever before: which modules run in such a step is worth a sample."""
        if len(self._presences) < _MOST_CHOICES:
            choice = self._subjects.layers.of_slots(present).tobytes()
            self._state.fed_changed |= bool(self._presences) and choice not in self._presences
            self._presences.add(choice)

    def forget(self) -> None:
        """What has been seen so far was of another model."""
        self._presences.clear()
        self.collector.forget()

    # -- after a step -------------------------------------------------------------------------------------

    def skips_step(self, slots: Slots) -> bool:
        """Whether there is nothing to read after one more step of the same optimizer."""
        plan = self._state.plan
        if plan.weight and not plan.gradient:
            return False
        return self.collector.skips_step(slots, plan.weight, self._governor.every is None)

    def read_step(self, optimizer: Optimizer, slots: Slots, frame: RawFrame) -> None:
        measured = self._state.plan.weight
        if self._subjects.lists.weights(slots).is_spread:
            if measured:
                frame.held = (self.collector.read_parts(optimizer, slots, self._parameters(slots)),)
            return
        held = self.collector.read_step(
            optimizer,
            slots,
            self._subjects.layers.of_slots(slots),
            self._parameters,
            self._subjects.layers.owners,
            whole=measured,
            governed=self._governor.every is None,
        )
        if held is not None:
            frame.held = (held,)

    def _parameters(self, slots: Slots) -> list[torch.Tensor]:
        return self._subjects.lists.weights(slots).parameters


def scale_of(scaler: GradScaler | None) -> Number:
    return number_now(getattr(scaler, "_scale", None), 1.0)


def losses_of(roots: tuple[Any, ...], gradients: tuple[Any, ...] = ()) -> list[Number]:
    return [loss for loss in map(loss_of, roots, gradients or (None,) * len(roots)) if loss is not None]


def loss_of(root: Any, weight: Any) -> Number | None:
    """The value being differentiated: a scalar, or the weighted sum a backward pass was started with."""
    if not isinstance(root, torch.Tensor) or root.device.type == "meta":
        return None
    if type(root) is not torch.Tensor and is_spread(root):  # asking the wrapper could call for the other ranks
        root = whole_here(root)
        weight = whole_here(weight) if is_spread(weight) else weight
        if root is None:
            return None
    if is_freed(root):
        return None
    value = root.detach()
    is_weighted = isinstance(weight, torch.Tensor) and weight.shape == value.shape
    if is_weighted:
        value = value * weight.detach()
    elif value.numel() != 1:
        return None
    value = (value if value.numel() == 1 else value.sum()).real
    return value if is_weighted and value.device.type != "cpu" else number_now(value, 0.0)  # a product is no user's
