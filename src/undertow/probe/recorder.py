"""One watched training: hears the taps, decides what a step is, and reads tensors at the right moments.

A step ends with an optimizer's `step()`. Gradients are read when the backward pass returns (complete and not yet
clipped) and compared with what the optimizer gets; weights are read right before and after it moves them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer

from undertow.measure.kernels.interface import Want
from undertow.probe import discovery, taps
from undertow.probe.distributed.local_gradients import LocalGradients
from undertow.probe.distributed.portions import gathers_parameters
from undertow.probe.forward import ForwardTap, ModuleReading
from undertow.probe.framing import frame_of
from undertow.probe.nonfinite import find_origin, is_nonfinite
from undertow.probe.purse import Purse
from undertow.probe.reader import TensorReader
from undertow.probe.readings import NewLayers, Note, Number, RawFrame, Slots
from undertow.probe.schedule import Governor, Plan
from undertow.probe.signals.collector import SignalCollector
from undertow.probe.step import NOTHING, StepReadings, inverse, loss_of, number_now, scale_of
from undertow.probe.subjects import Subjects
from undertow.probe.weight_watch import WeightWatch

_MAX_WALKS = 20
Item = RawFrame | NewLayers | Note


class Recorder:
    """Implements `taps.Listener`."""

    def __init__(
        self,
        subjects: Subjects,
        governor: Governor,
        post: Callable[[Item], None],
        failed: Callable[[Exception], None],
        first_step: int = 0,
    ) -> None:
        self.subjects = subjects
        self.governor = governor
        self.step = first_step - 1
        self._first_step = first_step
        self._post = post
        self._failed = failed
        self._reader = TensorReader()
        self._weights = WeightWatch(subjects, self._reader)
        self._local = LocalGradients(subjects, self._reader)
        self._forward = ForwardTap(self._reader.kernel_for)
        self._signals = SignalCollector()
        self._plan = self._next_plan = governor.plan(0)
        self._purse = Purse()
        self._step_began = time.perf_counter()
        self._stepped_in_step: set[int] = set()
        self._fired: set[int] = set()
        self._fresh = False  # a backward pass has run since the last step
        self._in_step = False
        self._stopped = False
        self._walks = 0
        self._want_walk = True
        self._hooked_saved_tensors = False
        self._nonfinite_seen = False
        self._bad_seen = False
        self._attempts = 0
        self._no_activations = ""
        self._step_ended = False
        self._step_shared = False
        self._modes_changed = False
        self._fed: set[bytes] = set()  # which parameters got a gradient, each choice once
        self._last_fed: Slots | None = None
        self._fed_changed = False
        self._pending: RawFrame | None = None  # a step taken inside the backward pass, sent when that returns
        self._now = StepReadings()

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        taps.add(self)
        if discovery.anything_compiled():
            self.compiling()
        else:
            self._forward.on_root = self._root_called
            self._forward.start()  # in the first step always: it shows which models are in use, and their order

    def stop(self) -> None:
        self._stopped = True
        taps.remove(self)
        self._forward.stop()
        self._forward.take()
        self._local.stop()
        self._now = StepReadings()
        self._weights.forget()
        self.subjects.release()

    def _guarded(self, work: Callable[..., object], *arguments: Any) -> None:
        """An internal error never reaches the user's loop; the time spent is counted."""
        if self._stopped:
            return
        try:
            with self._purse.always:
                work(*arguments)
            if self._forward.error is not None:
                raise self._forward.error
        except Exception as error:
            self.stop()
            self._failed(error)

    # -- what the taps say --------------------------------------------------------------------------------

    def before_backward(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> None:
        self._guarded(self._before_backward, roots, gradients)

    def after_backward(self) -> None:
        self._guarded(self._after_backward)

    def gradients_taken(self, outputs: tuple[Any, ...], inputs: tuple[Any, ...]) -> None:
        self._guarded(self._gradients_taken, outputs, inputs)

    def before_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        self._guarded(self._before_step, optimizer, has_closure)

    def closure_evaluated(self, optimizer: Optimizer) -> None:
        self._guarded(self._closure_evaluated, optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        self._guarded(self._after_step, optimizer)

    def loss_scaled(self, scaler: GradScaler) -> None:
        if not self._stopped:
            self._open_step()
            self._now.scaler = scaler
            self._fired.clear()

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        self._guarded(self._scaler_stepped, optimizer)

    def saved_tensors_hooked(self) -> None:
        self._hooked_saved_tensors = True

    def compiling(self) -> None:
        self._give_up_activations("the model is compiled: hooks inside it would change what is compiled")

    # -- a backward pass ----------------------------------------------------------------------------------

    def _open_step(self) -> None:
        """The first sign of the next step: until then, further optimizers may still step in the last one."""
        if self._step_ended:
            self._step_ended = False
            self._plan = self._next_plan
            self._now = StepReadings()

    def _before_backward(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> None:
        if self._forward.running:
            self._forward.pause(True)
        if not self.subjects.ready and not self._discover(roots):
            return
        if not self._in_step:
            self._open_step()
            self._fresh = True
        elif self._now.closure_read:
            return  # LBFGS evaluates its closure many times; the first one is the gradient of this step
        self._now.backward_count += 1
        self._take_losses(roots, gradients)
        self._look_at_signals(roots)
        if self._plan.gradient:
            with self._purse.gradient:
                self.subjects.note_cleared(self._reader)
                self._now.cleared_known = True
                if self.subjects.layout.spread is not None and self._now.backward_count == 1:
                    self._local.begin()
        self._look_for_nonfinite(roots)
        if self._want_walk and self._walks < _MAX_WALKS:
            self._walk(roots)

    def _after_backward(self) -> None:
        if self._forward.paused:
            self._forward.pause(False)
        if not self.subjects.ready or (self._in_step and self._now.closure_read):
            return
        self._now.closure_read = self._in_step
        if self._now.scaler is not None:
            self._now.scale = scale_of(self._now.scaler)
        if not self._plan.gradient and not self._bad_seen and self.subjects.gradients_went_bad(self._reader):
            self._bad_seen = True  # measure this very step: it shows where it began
            self._plan = Plan(gradient=True, weight=True, activation=self._plan.activation)
        if self._pending is not None:
            self._emit(self._pending)
        elif self._plan.gradient:
            with self._purse.gradient:
                fed = self.subjects.slots_with_gradient()
                self._note_fed(fed)
                gradients = self.subjects.gradients(fed)
                self._now.gradients, self._now.marks = self._reader.read_and_mark(
                    gradients, factor=inverse(self._now.scale)
                )
                self._now.micro.append(self._now.gradients)
                if self.subjects.layout.spread is not None:
                    self._now.local += self._local.end(inverse(self._now.scale))

    def _note_fed(self, fed: Slots) -> None:
        """Other parameters get a gradient than ever before: which modules run in such a step is worth a look."""
        if fed is not self._last_fed and len(self._fed) < _MAX_WALKS:  # nearly always one array for equal slots
            self._last_fed, choice = fed, fed.tobytes()
            self._fed_changed |= bool(self._fed) and choice not in self._fed
            self._fed.add(choice)

    def _gradients_taken(self, outputs: tuple[Any, ...], inputs: tuple[Any, ...]) -> None:
        """`torch.autograd.grad`: of interest when it differentiates by watched parameters."""
        if not self.subjects.ready and not self._discover(outputs):
            return
        if any(self.subjects.watches(tensor) for tensor in inputs):
            self._open_step()
            self._fresh = True
            self._now.backward_count += 1
            self._take_losses(outputs, ())
            if self._want_walk and self._walks < _MAX_WALKS:
                self._walk(outputs)

    def _take_losses(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> None:
        if len(roots) == 1 and not gradients:  # nearly always
            loss = loss_of(roots[0], None)
            if loss is not None:
                self._now.losses.append(loss)
            return
        weights = gradients if len(gradients) == len(roots) else (None,) * len(roots)
        self._now.losses += [loss for loss in map(loss_of, roots, weights) if loss is not None]

    def _look_at_signals(self, roots: tuple[Any, ...]) -> None:
        """What the loss and the graph of the model show beside gradients; see `probe.signals`."""
        if self._forward.readings:
            self._signals.note_modes(self._forward.readings.values())
            known = self.subjects.catalogue.module_layer
            self._signals.note_strangers(self._forward.readings, known, self._forward.roots_called)
        self._modes_changed |= self._signals.modes_changed()
        if self._hooked_saved_tensors:  # unpacking those could run the user's code again
            return
        planned = self._plan.gradient or self._plan.activation
        if self._signals.wants_loss(planned, self.governor.every is None):
            with self._purse.signal:
                self._signals.look_at_loss(roots, self._now.scaler)
        if self._plan.activation and self._forward.readings and self._now.backward_count == 1:
            with self._purse.activation:
                self._signals.look_at_graph(roots, self._forward.readings.values())

    def _look_for_nonfinite(self, roots: tuple[Any, ...]) -> None:
        """When a loss has just turned non-finite, its own graph still shows where that began."""
        if self._nonfinite_seen or not self._now.losses or not is_nonfinite(self._now.losses[-1]):
            return
        self._nonfinite_seen = True
        self._plan = Plan(gradient=True, weight=True, activation=self._plan.activation)
        may_unpack = not self._hooked_saved_tensors
        origin = find_origin(self.subjects, self._reader, roots, self._module_readings(), may_unpack)
        if origin is not None:
            self._post(Note("first_nonfinite", self.step + 1, origin))

    def _walk(self, roots: tuple[Any, ...]) -> None:
        self._walks += 1
        self._want_walk = False
        positions = {
            layer: reading.position
            for layer, reading in self._module_readings().items()
            if reading.position is not None
        }
        if self.subjects.walk(roots, positions):
            self._post_layers()

    # -- an optimizer step --------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        self._fired.add(id(optimizer))
        if not self.subjects.ready and not self._discover(stepping=optimizer):
            return
        slots = self._slots_of(optimizer)
        if not len(slots):
            return
        self._in_step = True
        self._count_step(optimizer)
        self._now.stepped = None
        if self._plan.gradient and not has_closure:
            with self._purse.gradient:
                self._read_stepped(optimizer, slots)
        if self._plan.weight:
            with self._purse.weight:
                self._weights.before(slots, self.step if self._step_shared else self.step - 1)

    def _closure_evaluated(self, optimizer: Optimizer) -> None:
        """A closure may clip what its backward pass gave. Of several evaluations the first one is this step's."""
        if not self._in_step or self._now.closure_ended:
            return
        self._now.closure_ended = True
        slots = self._slots_of(optimizer)
        if self._plan.gradient and len(slots):
            with self._purse.gradient:
                self._read_stepped(optimizer, slots)

    def _slots_of(self, optimizer: Optimizer) -> Slots:
        """The slots an optimizer steps. A new one can bring new tensors, and slots then stand for other tensors than
        those that the backward pass of this step was read by."""
        layout = self.subjects.layout
        slots = self.subjects.slots_of(optimizer, self._post_layers)
        if self.subjects.layout is not layout:
            self._now.forget_gradients()
        return slots

    def _count_step(self, optimizer: Optimizer) -> None:
        again = id(optimizer) in self._stepped_in_step
        self._step_shared = not (self._fresh or again or self.step < self._first_step)
        if not self._step_shared:
            self._open_step()
            self.step += 1
            self._stepped_in_step = set()
            self._fresh = False
        self._stepped_in_step.add(id(optimizer))

    def _read_stepped(self, optimizer: Optimizer, slots: Slots) -> None:
        """The gradients as this optimizer sees them; measured again only when they may have changed."""
        present = self.subjects.with_gradient(slots)
        factor = inverse(number_now(getattr(optimizer, "grad_scale", None), 1.0))
        if self._now.covers(present):
            missing, known = NOTHING, present
        else:
            missing = np.setdiff1d(present, self._now.slots)
            known = np.setdiff1d(present, missing)
        if len(missing):  # no backward pass was seen, or it is still running: this is the first look
            self._now.gradients += self._reader.read(self.subjects.gradients(missing), factor=factor)
        if len(known):
            gradients = self.subjects.gradients(known)
            if self._now.scaler is not None or not self._reader.unchanged(self._now.marks, gradients):
                self._now.stepped = self._reader.read(gradients, Want.MOMENTS, factor=factor)

    def _after_step(self, optimizer: Optimizer) -> None:
        self._in_step = False
        if not self.subjects.ready:
            return
        slots = self.subjects.slots_of(optimizer, self._post_layers)
        if not len(slots):
            self._now = StepReadings()  # another model's step: the backward pass before it was not ours
            self._signals.forget()
            self._fresh = False
            return
        frame = self._frame(optimizer, slots, number_now(getattr(optimizer, "found_inf", None), 0.0))
        self.subjects.mark_uncleared(slots)
        if self._plan.weight:
            with self._purse.weight:
                self._weights.after(frame)
        with self._purse.signal:
            self._look_at_step(optimizer, slots, frame)
        self._finish(frame)

    def _look_at_step(self, optimizer: Optimizer, slots: Slots, frame: RawFrame) -> None:
        if self.subjects.weights(slots).is_spread:
            if self._plan.weight:
                frame.held.append(self._signals.look_at_parts(optimizer, slots, self._parameters(slots)))
            return
        held = self._signals.look_at_step(
            optimizer,
            slots,
            self._parameters,
            self.subjects.catalogue.owners,
            whole=self._plan.weight,
            governed=self.governor.every is None,
        )
        if held is not None:
            frame.held.append(held)

    def _scaler_stepped(self, optimizer: Optimizer) -> None:
        """A loss scaler that found infinities does not call the optimizer: the step counts and is marked."""
        if id(optimizer) in self._fired or not self.subjects.ready:
            self._fired.discard(id(optimizer))
            return
        slots = self._slots_of(optimizer)
        if len(slots):
            self._count_step(optimizer)
            self._now.stepped = None
            frame = self._frame(optimizer, slots, 1.0)
            self.subjects.mark_uncleared(slots)
            self._finish(frame)

    # -- a frame ------------------------------------------------------------------------------------------

    def _frame(self, optimizer: Optimizer, slots: Slots, skipped: Number) -> RawFrame:
        return frame_of(self.subjects, self._now, self._plan, self.step, optimizer, slots, self._step_shared, skipped)

    def _finish(self, frame: RawFrame) -> None:
        if taps.in_backward():  # many small optimizers, one per parameter: one frame when the pass is over
            if self._pending is None:
                self._pending = frame
            else:
                self._pending.absorb(frame)
            self._now.gradients = []
            return
        self._emit(frame)

    def _emit(self, frame: RawFrame) -> None:
        self._pending = None
        frame.complete = self._reader.moments()
        is_first_of_step = not self._step_shared or frame.joined
        if is_first_of_step:
            now = time.perf_counter()
            frame.scalars["step_time"] = now - self._step_began
            spent = self._purse.take()
            if self._forward.readings:
                if self._plan.activation:
                    frame.modules = self._module_readings()
                    frame.output_gradient_factor = inverse(self._now.scale)
                    self._signals.note_data(self._forward.data, self._forward.data_address)
                spent["activation"] = spent.get("activation", 0.0) + self._forward.seconds
                self._forward.take()
            frame.signals = self._signals.take(spent.get("signal", 0.0), self.governor.allowed)
            self._post(frame)
            self.governor.spent(spent, now - self._step_began, first=self.step == self._first_step)
            self._step_began = now
        else:
            self._post(frame)
        self._prepare_next()

    def _prepare_next(self) -> None:
        self._step_ended = True
        done = self.step - self._first_step
        if self.subjects.due(done) and self.subjects.rescan():
            self._want_walk = True
            self._post_layers()
        if (done < 5 or self.subjects.due(done)) and self.subjects.unplaced():
            self._want_walk = True
        self._next_plan = self.governor.plan(done + 1)
        if self._modes_changed and self.governor.activations is not False:
            self._next_plan = replace(self._next_plan, activation=True)
            self._modes_changed = False
        if self._fed_changed and self.governor.activations is None:
            self._next_plan = replace(self._next_plan, gradient=True, activation=True)
            self._fed_changed = False
        if self._next_plan.activation and not self._no_activations:
            self._forward.start()
        elif self._forward.running:
            self._forward.stop()

    # -- the rest -----------------------------------------------------------------------------------------

    def _parameters(self, slots: Slots) -> list[torch.Tensor]:
        return self.subjects.weights(slots).parameters

    def _module_readings(self) -> dict[int, ModuleReading]:
        known = self.subjects.catalogue.module_layer
        return {known[module]: reading for module, reading in self._forward.readings.items() if module in known}

    def _root_called(self, module: torch.nn.Module) -> None:
        """A model that gathers its parameters while it runs has others then than those its optimizer holds: its
        layers are looked up before."""
        if self.subjects.ready:
            self._forward.on_root = None
        elif gathers_parameters(module):
            self._guarded(self._discover)

    def _discover(self, loss: tuple[Any, ...] = (), stepping: Optimizer | None = None) -> bool:
        """Look for something to watch; ever more rarely, because looking is slow and there may be nothing."""
        if stepping is None and loss and any(map(gathers_parameters, self._forward.roots_called)):
            return False  # too late, and too early: see `_root_called`
        self._attempts += 1
        if self._attempts & (self._attempts - 1):
            return False
        if not self.subjects.discover(self._forward.roots_called, loss, stepping):
            return False
        if self.subjects.is_compiled:
            self.compiling()
        self._post_layers()
        return True

    def _post_layers(self) -> None:
        self._post(NewLayers(self.subjects.catalogue.table, self.subjects.catalogue.graph, self.subjects.facts()))

    def _give_up_activations(self, reason: str) -> None:
        if not self._no_activations:
            self._no_activations = reason
            self._forward.stop()
            self._forward.take()
            self._post(Note("note", None, {"reason": f"no activations: {reason}"}))
