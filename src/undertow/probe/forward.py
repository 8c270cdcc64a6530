"""Activations: what modules put out, and the gradient that comes back to their outputs.

Global module hooks, present only while a sampled step runs; nothing is attached to a module. Gradients at outputs
come from tensor hooks, because full backward hooks break models with in-place activations.
"""

import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from undertow.measure.kernels.interface import Kernel, Want
from undertow.measure.kernels.tensors import is_freed
from undertow.measure.partials import Moment, Partials
from undertow.probe.signal_handlers import raised_by_handler
from undertow.probe.signals.modules import (
    constants,
    is_wrapped,
    norm_samples,
    norm_values,
    raw_data,
    running_average,
    sample_spread,
    unit_dimension,
)
from undertow.probe.signals.recomputation import RecomputedModules
from undertow.probe.unseen import is_traced, unseen

MAX_ELEMENTS = 1 << 20  # of one output; larger ones are read from their first samples
MAX_CALLS = 20_000  # of one module in one step
MAX_SPANS = 64  # calls of one module whose operations are told apart
MAX_IDLE = 64  # forward passes without a backward pass: this is no training loop, or not yet

_BOUNDED: dict[type[nn.Module], tuple[float, float]] = {
    nn.Tanh: (-0.99, 0.99),
    nn.Sigmoid: (0.01, 0.99),
    nn.Hardtanh: (-1.0, 1.0),
    nn.Hardsigmoid: (0.0, 1.0),
    nn.Softsign: (-0.99, 0.99),
}
_next_operation: Callable[[], int] = torch.autograd._get_sequence_nr  # pyright: ignore[reportPrivateImportUsage]


@dataclass(slots=True)
class ModuleReading:
    """One module's outputs over the forward passes of a step, without keeping the module alive."""

    reference: Callable[[], nn.Module | None]
    kind: type[nn.Module]
    constants: dict[str, float]  # what it is set to
    calls: int = 0
    position: int | None = None  # autograd sequence number of its last operation
    outputs: list[Any] = field(default_factory=list[Any])  # Partials, or the same still on a device
    active_units: list[NDArray[np.uint8]] = field(default_factory=list[NDArray[np.uint8]])
    saturated: list[Any] = field(default_factory=list[Any])  # share of each call
    output_gradients: list[Any] = field(default_factory=list[Any])
    training: bool | None = None  # at the backward pass it took part in
    spreads: list[float] = field(default_factory=list[float])  # share of variance between samples, of each call
    norm_values: int | None = None
    norm_samples: int | None = None  # in the smallest batch
    recomputed_apart: float | None = None  # 1.0 when it drew other random numbers in the backward pass than before it
    norm_average: float | None = None  # norm of the running means before the first call
    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # operations inside each call
    attention_logits: list[float] = field(default_factory=list[float])
    attention_entropies: list[float] = field(default_factory=list[float])
    attention_state: float | None = None
    padding_inside: float | None = None
    dropped: float | None = None  # the rate of a dropout that has no module of its own
    router_loads: list[float] = field(default_factory=list[float])
    router_outputs: int | None = None
    latent_nats: float | None = None
    source: "ModuleReading | None" = None  # of the part whose output this one's is
    seconds: float = 0.0  # that it took to measure
    is_measured: bool = True  # else only when it ran is known

    @property
    def module(self) -> nn.Module | None:
        return self.reference()

    def has_nonfinite_output(self) -> bool:
        on_host = (partials for partials in self.outputs if isinstance(partials, Partials))
        return any(bool((partials.finite() < partials.moments[:, Moment.COUNT]).any()) for partials in on_host)


NOT_RUN = ModuleReading(lambda: None, nn.Module, {})


@dataclass(frozen=True, slots=True)
class ModuleSample:
    """Some of the modules, by id: one step of a round that reaches all of them."""

    measured: frozenset[int]
    skipped: frozenset[int]  # not even noted when they run
    with_graph: bool
    share: float  # of all modules that the round has reached with this sample
    is_whole: bool = False


class ForwardTap:
    """Collects readings between `start` and `stop`."""

    def __init__(self, kernel_for: Callable[[str], Kernel]) -> None:
        self._kernel_for = kernel_for
        self._handles: list[Any] = []
        self._thread: int | None = None  # modules that run in others are not of this training
        self._entered: list[int] = []  # the number of the next operation when each module under way began
        self._outermost_counts = False
        self._paused = False
        self._idle = 0  # forward passes since the last backward pass
        # A container often returns its last part's output: id of the tensor → (weak reference, reading).
        self._measured: dict[int, tuple[weakref.ref[torch.Tensor], ModuleReading]] = {}
        self.seconds = 0.0  # spent in hooks since the last `take`, in the thread's own time: see `StepTimer`
        self.readings: dict[int, ModuleReading] = {}
        self._collecting: Any = None  # the kernel of a device that measures outputs one by one and sends them together
        self._redrawn = RecomputedModules()
        self.sample: ModuleSample | None = None  # None: all modules
        self._data_module = 0  # the one that took the data in when all were sampled, by id
        self._averages: dict[int, float] = {}  # running means, as they were before a module first ran
        self._roots_called: list[weakref.ref[nn.Module]] = []
        self.data: Any = None  # Partials of what enters the first module with parameters
        self.data_address = 0
        self.error: Exception | None = None
        self.on_root: Callable[[nn.Module], None] | None = None  # before an outermost module runs

    @property
    def running(self) -> bool:
        return bool(self._handles)

    @property
    def paused(self) -> bool:
        return self._paused

    @property
    def roots_called(self) -> list[nn.Module]:
        return [module for one in self._roots_called if (module := one()) is not None]

    def start(self, sample: ModuleSample | None = None) -> None:
        self.sample = sample
        if not self._handles:
            self._entered, self._idle = [], 0
            self._handles = [
                register_module_forward_pre_hook(self._enter),
                register_module_forward_hook(self._leave, always_call=True),
            ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._measured = {}

    def follow(self, thread: int) -> None:
        """Until then the first thread that runs a module is followed."""
        if self._thread != thread:
            self._thread = thread
            self._entered = []
            self.take()

    def pause(self, paused: bool) -> None:
        """Checkpointed modules run again during the backward pass: those runs are not new activations."""
        self._paused = paused
        self._idle = 0
        self._entered = []
        self._measured = {}

    def take(self) -> dict[int, ModuleReading]:
        readings, self.readings = self.readings, {}
        self._redrawn.clear()
        self._averages = {}
        self._roots_called = []
        self.data = None
        self.seconds = 0.0
        if self._collecting is not None:
            self._collecting.drop_outputs()
            self._collecting = None
        return readings

    def send(self) -> float:
        """Before readings are handed on: what was measured on a device is on its way from now on. Returns the seconds
        that this takes."""
        if self._collecting is None:
            return 0.0
        began = time.thread_time()
        self._collecting.send_outputs()
        return time.thread_time() - began

    def _measure(self, kernel: Any, tensor: torch.Tensor) -> Any:
        """The moments of one tensor; on a device they stay there until the background thread fetches them."""
        if tensor.is_cpu:
            return kernel.measure([tensor], Want.MOMENTS)
        if hasattr(kernel, "measure_output"):
            self._collecting = kernel
            return kernel.measure_output(tensor)
        with torch.no_grad():
            return kernel.measure_on_device([tensor], Want.MOMENTS)

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if self.sample is not None and id(module) in self.sample.skipped:
            return
        try:
            if is_traced():
                return
            with unseen():
                self._entering(module, inputs)
        except Exception as error:  # kept for the listener, which detaches; the user's forward goes on
            self._keep(error)

    def _keep(self, error: Exception) -> None:
        if raised_by_handler(error):
            raise error
        self.error = _without_variables(error)

    def _entering(self, module: nn.Module, inputs: Any) -> None:
        if self._paused:
            self._note_recomputation(module, inputs)
            return
        if self._thread != get_ident():
            if self._thread is not None:
                return
            self._thread = get_ident()
        if type(module).__name__ == "OptimizedModule":
            self.stop()  # what is inside is about to be compiled: our hooks must not become part of it
            return
        if not self._entered:
            # A forward pass without gradients by a model in evaluation mode is validation, not training.
            self._outermost_counts = torch.is_grad_enabled() or module.training
            if self._outermost_counts and not any(module is known for known in self.roots_called):
                self._roots_called.append(weakref.ref(module))
                if self.on_root is not None:
                    self.on_root(module)
            self._idle += 1
            if self._idle > MAX_IDLE:
                self.stop()
                return
        self._entered.append(_next_operation())
        average = running_average(module) if self._outermost_counts else None
        if average is not None:
            self._averages.setdefault(id(module), average)
        if self._redrawn.knows(module):
            self._redrawn.enter(module, inputs)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        sample = self.sample
        if sample is not None and id(module) in sample.skipped:
            return
        try:
            if is_traced() or self._paused or self._thread != get_ident():
                return
            entered = self._entered.pop() if self._entered else None
            if not self._outermost_counts or self.error is not None or not self._handles:
                return
            is_measured = sample is None or id(module) in sample.measured
            if not is_measured and not (sample and sample.with_graph):
                return
            began = time.thread_time()
            with unseen():
                if self._redrawn.knows(module):
                    self._redrawn.leave(module, inputs)
                reading = self._reading(module, is_measured)
                if reading is not None:
                    self._read(module, reading, inputs, output, entered)
            seconds = time.thread_time() - began
            self.seconds += seconds
            if reading is not None:
                reading.seconds += seconds
        except Exception as error:  # as above
            self._keep(error)

    def _note_recomputation(self, module: nn.Module, inputs: Any) -> None:
        reading = self.readings.get(id(module))
        if reading is not None and (apart := self._redrawn.again(module, inputs)) is not None:
            reading.recomputed_apart = max(float(apart), reading.recomputed_apart or 0.0)

    def _reading(self, module: nn.Module, is_measured: bool) -> ModuleReading | None:
        reading = self.readings.get(id(module))
        if reading is None or reading.module is not module:
            if len(self.readings) >= MAX_CALLS:
                return None
            if reading is not None:  # of a module that was made and dropped in this very step, in the same place
                self.readings[-len(self.readings)] = reading
            found = constants(module) if is_measured else {}
            reading = ModuleReading(weakref.ref(module), type(module), found, is_measured=is_measured)
            self.readings[id(module)] = reading
        return reading

    def _read(self, module: nn.Module, reading: ModuleReading, inputs: Any, output: Any, entered: int | None) -> None:
        reading.calls += 1
        if reading.is_measured:
            self._read_input(module, reading, inputs)
        tensor = _first_tensor(output)
        if tensor is None or not tensor.numel() or reading.calls > MAX_CALLS:
            return
        made_by = tensor.grad_fn
        if made_by is not None:
            if reading.position is None:
                reading.position = made_by._sequence_nr()
            if entered is not None and len(reading.spans) < MAX_SPANS:
                reading.spans.append((entered, _next_operation()))
        if not reading.is_measured:
            return
        shared = self._measured.get(id(tensor))
        if shared is not None and shared[0]() is tensor:
            source = reading.source = shared[1]
            reading.outputs.append(source.outputs[-1])
            if source.active_units:
                reading.active_units.append(source.active_units[-1])
            reading.spreads = source.spreads
            reading.output_gradients = source.output_gradients
            return
        kernel: Kernel = self._kernel_for(tensor.device.type)
        values = _leading(tensor.detach())
        partials = self._measure(kernel, values)
        reading.outputs.append(partials)
        if tensor.is_cpu and values.dim() >= 2:
            units = _units(type(module), values, kernel, partials)
            if units is not None:
                reading.active_units.append(units)
            spread = sample_spread(values)
            if spread is not None:
                reading.spreads.append(spread)
        bounds = _BOUNDED.get(type(module))
        if bounds is not None:
            low, high = bounds
            reading.saturated.append(((values <= low) | (values >= high)).float().mean())
        self._measured[id(tensor)] = (weakref.ref(tensor), reading)
        if tensor.requires_grad:
            self._listen(tensor, reading, kernel)

    def _read_input(self, module: nn.Module, reading: ModuleReading, inputs: Any) -> None:
        count = norm_values(module, inputs)
        if count is not None:
            reading.norm_values = min(count, reading.norm_values or count)
            reading.norm_average = self._averages.get(id(module))
            samples = norm_samples(module, inputs)
            if samples is not None:
                reading.norm_samples = min(samples, reading.norm_samples or samples)
        if self.data is not None or (self.sample is not None and id(module) != self._data_module):
            return
        data = raw_data(module, inputs)
        if data is not None and not is_freed(data):
            self.data = self._measure(self._kernel_for(data.device.type), _leading(data.detach()))
            self.data_address = data.data_ptr()
            self._data_module = id(module)

    def _listen(self, tensor: torch.Tensor, reading: ModuleReading, kernel: Kernel) -> None:
        sink = reading.output_gradients

        def receive(gradient: torch.Tensor | None) -> None:
            try:
                # None: nothing comes back this way. Wrapped: many gradients at once, of `is_grads_batched`.
                if gradient is None or is_traced() or is_wrapped(gradient) or is_freed(gradient):
                    return
                began = time.thread_time()
                with unseen():
                    sink.append(self._measure(kernel, gradient.detach()))
                seconds = time.thread_time() - began
                self.seconds += seconds
                reading.seconds += seconds
            except Exception as error:
                self._keep(error)

        tensor.register_hook(receive)


def _without_variables(error: Exception) -> Exception:
    """With its traceback, but not what the functions in it were called with: that would keep the user's tensors."""
    inner = None if error.__traceback__ is None else error.__traceback__.tb_next
    traceback.clear_frames(inner)
    return error.with_traceback(inner)


def _first_tensor(output: Any) -> torch.Tensor | None:
    if isinstance(output, (tuple, list)):
        found = next((item for item in output if isinstance(item, torch.Tensor)), None)
    elif isinstance(output, dict):
        found = next((item for item in output.values() if isinstance(item, torch.Tensor)), None)
    else:
        found = output if isinstance(output, torch.Tensor) else None
    if found is None or not found.is_floating_point() or found.is_meta or found.layout is not torch.strided:
        return None
    if type(found) not in (torch.Tensor, nn.Parameter) or is_wrapped(found) or is_freed(found):
        return None
    return found


def _leading(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.numel() <= MAX_ELEMENTS or tensor.dim() == 0 or tensor.shape[0] < 2:
        return tensor
    per_sample = tensor.numel() // tensor.shape[0]
    return tensor[: max(1, MAX_ELEMENTS // max(per_sample, 1))]


def _units(kind: type[nn.Module], values: torch.Tensor, kernel: Kernel, partials: Partials) -> NDArray[np.uint8] | None:
    """One flag per channel or feature: was it ever non-zero in this call?"""
    dimension = unit_dimension(kind, values.dim())
    if not partials.moments[0, Moment.ZERO]:
        return np.ones(values.shape[dimension], np.uint8)
    return kernel.unit_activity(values, dimension)
