"""One watched training: hears the taps, decides what a step is, and reads tensors at the right moments.

A step ends with an optimizer's `step()`. Gradients are read when the backward pass returns (complete and not yet
clipped) and compared with what the optimizer gets; weights are read right before and after it moves them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer

from undertow.probe import discovery, taps
from undertow.probe.distributed.local_gradients import LocalGradients
from undertow.probe.distributed.portions import gathers_parameters
from undertow.probe.forward import ForwardTap
from undertow.probe.framing import frame_of
from undertow.probe.reader import TensorReader
from undertow.probe.readings import NewLayers, Note, RawFrame, Slots, inverse, number_now
from undertow.probe.schedule import Governor
from undertow.probe.steady import SteadyStep
from undertow.probe.step_signals import StepSignals, scale_of
from undertow.probe.step_state import StepState
from undertow.probe.step_timer import StepTimer
from undertow.probe.stepped import read_stepped
from undertow.probe.subjects import Subjects
from undertow.probe.tensor_list import TensorList
from undertow.probe.weight_watch import WeightWatch

_MAX_WALKS = 20
_now = time.perf_counter
Item = RawFrame | NewLayers | Note


class StepMachine:
    """Implements `taps.Listener`. What happens at every step is written twice: here, whatever the training does, and
    shorter in `steady`, for steps that are like the ones before them.
    """

    def __init__(
        self,
        subjects: Subjects,
        governor: Governor,
        post: Callable[[Item], float],
        failed: Callable[[Exception], None],
        first_step: int = 0,
    ) -> None:
        self.subjects = subjects
        self.governor = governor
        self._post = post
        self._failed = failed
        self._course = StepState(first_step, governor.plan(0))
        self._timer = StepTimer()
        self._reader = TensorReader()
        self._weights = WeightWatch(self._reader)
        self._local = LocalGradients(subjects, self._reader)
        self._forward = ForwardTap(self._reader.kernel_for)
        self._signals = StepSignals(self._course, subjects, self._reader, self._forward, self._timer, governor)
        self._steady = SteadyStep(
            self._course, subjects, self._reader, self._weights, self._signals, self._timer, governor, self._emit, post
        )
        steady = self._steady
        self.before_backward = self._tap(steady.before_backward, self._before_backward)
        self.after_backward = self._tap(steady.after_backward, self._after_backward)
        self.before_step = self._tap(steady.before_step, self._before_step)
        self.after_step = self._tap(steady.after_step, self._after_step)
        self.gradients_taken = self._tap(_never, self._gradients_taken)
        self.closure_evaluated = self._tap(_never, self._closure_evaluated)
        self._held_back = self._tap(_never, self._scaler_stepped)
        self._averaged = self._tap(_never, self._gradients_averaged)
        self._stopped = False
        self._walks = 0
        self._attempts = 0
        self._no_activations = ""

    @property
    def step(self) -> int:
        return self._course.step

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        taps.add(self)
        if discovery.anything_compiled():
            self.compiling()
        else:
            self._forward.on_root = self._root_called
            self._forward.start()  # in the first step always: it shows which models are in use, and their order

    def note_look(self, seconds: float) -> None:
        """From the background thread: how long the numbers of one loss take it."""
        self._signals.collector.seconds_behind = seconds

    def stop(self) -> None:
        self._stopped = True
        taps.remove(self)
        self._forward.stop()
        self._forward.take()
        self._local.stop()
        self._steady.forget()
        self._course.forget()
        self._weights.forget()
        self.subjects.release()

    def _tap(self, short: Callable[..., bool], long: Callable[..., object]) -> Callable[..., None]:
        """The short way if it can be taken, else the long one. An error of ours never reaches the user's loop."""
        always = self._timer.always

        def tap(*arguments: Any) -> None:
            if self._stopped:
                return
            began = _now()
            try:
                if not short(*arguments):
                    self._steady.hand_over()
                    long(*arguments)
                    if self._forward.error is not None:
                        raise self._forward.error
            except Exception as error:
                self.stop()
                self._failed(error)
            always.seconds += _now() - began

        return tap

    # -- what else the taps say ---------------------------------------------------------------------------

    def loss_scaled(self, scaler: GradScaler) -> None:
        if not self._stopped:
            self._steady.hand_over()
            self._course.open()
            self._course.now.scaler = scaler
            self._course.fired.clear()

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        self._held_back(optimizer)

    def gradients_averaged(self, passes: float) -> None:
        if passes != 1.0:
            self._averaged(passes)

    def saved_tensors_hooked(self) -> None:
        self._course.hooked_saved_tensors = True

    def compiling(self) -> None:
        self._give_up_activations("the model is compiled: hooks inside it would change what is compiled")

    # -- a backward pass ----------------------------------------------------------------------------------

    def _before_backward(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> None:
        if self._forward.running:
            self._forward.pause(True)
        if not self.subjects.ready and not self._discover(roots):
            return
        course = self._course
        if not course.in_step:
            course.open()
            course.fresh = True
        elif course.now.closure_read:
            return  # LBFGS evaluates its closure many times; the first one is the gradient of this step
        course.now.backward_count += 1
        self._signals.take_losses(roots, gradients)
        self._signals.look_at_loss(roots)
        if course.plan.gradient:
            with self._timer.gradient:
                self.subjects.note_cleared(self._reader)
                course.now.cleared_known = True
                if self.subjects.layout.spread is not None and course.now.backward_count == 1:
                    self._local.begin()
        origin = self._signals.look_for_nonfinite(roots)
        if origin is not None:
            self._post(origin)
        self._walk(roots)

    def _after_backward(self) -> None:
        if self._forward.paused:
            self._forward.pause(False)
        course, now = self._course, self._course.now
        if not self.subjects.ready or (course.in_step and now.closure_read):
            return
        now.closure_read = course.in_step
        self.subjects.zero_grads.note_added(self.subjects.layers.tensors)
        if now.scaler is not None:
            now.scale = scale_of(now.scaler)
        if not course.plan.gradient and not course.bad_seen and self.subjects.gradients_went_bad(self._reader):
            course.bad_seen = True
            course.measure_now()
        if course.pending is not None:
            self._emit(course.pending)
        elif course.plan.gradient:
            with self._timer.gradient:
                fed = self.subjects.slots_with_gradient()
                self._signals.note_fed(fed)
                gradients = self.subjects.gradients(fed)
                now.gradients, now.marks = self._reader.read_and_mark(gradients, factor=inverse(now.scale))
                now.micro.append(now.gradients)
                if self.subjects.layout.spread is not None:
                    now.local += self._local.end(inverse(now.scale))

    def _gradients_averaged(self, passes: float) -> None:
        """Of what was added up over several passes the mean is taken: that is the gradient, and its loss the loss."""
        course, now = self._course, self._course.now
        now.losses = [loss / passes for loss in now.losses]
        if self.subjects.ready and course.plan.gradient and now.gradients:
            with self._timer.gradient:
                gradients = self.subjects.gradients(self.subjects.slots_with_gradient())
                now.gradients, now.marks = self._reader.read_and_mark(gradients, factor=inverse(now.scale))

    def _gradients_taken(self, outputs: tuple[Any, ...], inputs: tuple[Any, ...]) -> None:
        """`torch.autograd.grad`: of interest when it differentiates by watched parameters."""
        if not self.subjects.ready and not self._discover(outputs):
            return
        if any(self.subjects.watches(tensor) for tensor in inputs):
            self._course.open()
            self._course.fresh = True
            self._course.now.backward_count += 1
            self._signals.take_losses(outputs, ())
            self._walk(outputs)

    def _walk(self, roots: tuple[Any, ...]) -> None:
        if not self._course.want_walk or self._walks >= _MAX_WALKS:
            return
        self._walks += 1
        self._course.want_walk = False
        positions = {
            layer: reading.position
            for layer, reading in self._signals.module_readings().items()
            if reading.position is not None
        }
        if self.subjects.walk(roots, positions):
            self._post_layers()

    # -- an optimizer step --------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        course = self._course
        course.fired.add(id(optimizer))
        if not self.subjects.ready and not self._discover(stepping=optimizer):
            return
        slots = self._slots_of(optimizer)
        if not len(slots):
            return
        course.in_step = True
        course.count(optimizer)
        course.now.stepped = None
        if course.plan.gradient and not has_closure:
            with self._timer.gradient:
                read_stepped(self.subjects, self._reader, course.now, optimizer, slots)
        if course.plan.weight:
            with self._timer.weight:
                self._weights.before(self._moving(slots), course.step if course.shared else course.step - 1)

    def _closure_evaluated(self, optimizer: Optimizer) -> None:
        """A closure may clip what its backward pass gave. Of several evaluations the first one is this step's."""
        course = self._course
        if not course.in_step or course.now.closure_ended:
            return
        course.now.closure_ended = True
        slots = self._slots_of(optimizer)
        if course.plan.gradient and len(slots):
            with self._timer.gradient:
                read_stepped(self.subjects, self._reader, course.now, optimizer, slots)

    def _slots_of(self, optimizer: Optimizer) -> Slots:
        """The slots an optimizer steps. A new one can bring new tensors, and slots then stand for other tensors than
        those that the backward pass of this step was read by."""
        layout = self.subjects.layout
        slots = self.subjects.slots_of(optimizer, self._post_layers)
        if self.subjects.layout is not layout:
            self._course.now.forget_gradients()
        return slots

    def _after_step(self, optimizer: Optimizer) -> None:
        course = self._course
        course.in_step = False
        if not self.subjects.ready:
            return
        slots = self.subjects.slots_of(optimizer, self._post_layers)
        if not len(slots):
            course.forget()  # another model's step: the backward pass before it was not ours
            self._signals.collector.forget()
            return
        skipped = number_now(getattr(optimizer, "found_inf", None), 0.0)
        frame = frame_of(self.subjects, course, optimizer, slots, skipped)
        self.subjects.zero_grads.step(slots)
        if course.plan.weight:
            with self._timer.weight:
                self._weights.after(frame, self.subjects.weights(frame.exposed), self._moving(frame.exposed))
        with self._timer.signal:
            self._signals.look_at_step(optimizer, slots, frame)
        self._finish(frame)
        self._steady.learn(optimizer, slots)

    def _scaler_stepped(self, optimizer: Optimizer) -> None:
        """A loss scaler that found infinities does not call the optimizer: the step counts and is marked."""
        course = self._course
        if id(optimizer) in course.fired or not self.subjects.ready:
            course.fired.discard(id(optimizer))
            return
        slots = self._slots_of(optimizer)
        if len(slots):
            course.count(optimizer)
            course.now.stepped = None
            frame = frame_of(self.subjects, course, optimizer, slots, 1.0)
            self.subjects.zero_grads.step(slots)
            self._finish(frame)

    # -- a frame ------------------------------------------------------------------------------------------

    def _finish(self, frame: RawFrame) -> None:
        if taps.in_backward():  # many small optimizers, one per parameter: one frame when the pass is over
            if self._course.pending is None:
                self._course.pending = frame
            else:
                self._course.pending.absorb(frame)
            self._course.now.gradients = []
            return
        self._emit(frame)

    def _emit(self, frame: RawFrame) -> None:
        course, forward = self._course, self._forward
        course.pending = None
        frame.complete = self._reader.events()
        if course.shared and not frame.joined:  # the second part of a step
            self._post(frame)
            self._prepare_next()
            return
        now = _now()
        seconds = frame.scalars["step_time"] = now - course.began
        spent = self._timer.take()
        if forward.readings:
            if course.plan.activation:
                frame.modules = self._signals.module_readings()
                frame.output_gradient_factor = inverse(course.now.scale)
                self._signals.collector.note_data(forward.data, forward.data_address)
            spent["activation"] = spent.get("activation", 0.0) + forward.seconds
            forward.take()
        frame.signals = self._signals.collector.take(spent.get("signal", 0.0), self.governor.allowed)
        waited = self._post(frame)  # for the background thread, which counts its time itself
        self._timer.always.seconds -= waited
        self.governor.spent(spent, seconds, first=course.step == course.first_step)
        course.began = now + waited
        self._prepare_next()

    def _prepare_next(self) -> None:
        course, subjects = self._course, self.subjects
        course.ended = True
        done = course.done
        due = subjects.due(done)
        if due and subjects.rescan():
            course.want_walk = True
            self._post_layers()
        if (done < 5 or due) and subjects.unplaced():
            course.want_walk = True
        plan = self.governor.plan(done + 1)
        if course.modes_changed and self.governor.activations is not False:
            # With the gradients of the same step: what runs and gets none has been cut off.
            plan = replace(plan, activation=True, gradient=plan.gradient or self.governor.every is None)
            course.modes_changed = False
        if course.fed_changed and self.governor.activations is None:
            plan = replace(plan, gradient=True, activation=True)
            course.fed_changed = False
        course.next_plan = plan
        if plan.activation and not self._no_activations:
            self._forward.start()
        elif self._forward.running:
            self._forward.stop()

    # -- the rest -----------------------------------------------------------------------------------------

    def _moving(self, slots: Slots) -> TensorList:
        return self.subjects.weights(self.subjects.moving(slots))

    def _root_called(self, module: torch.nn.Module) -> None:
        """A model that gathers its parameters while it runs has others then than those its optimizer holds: its
        layers are looked up before."""
        if self.subjects.ready:
            self._forward.on_root = None
        elif gathers_parameters(module):
            self._tap(_never, self._discover)()

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
        taps.look_again()
        self._post_layers()
        return True

    def _post_layers(self) -> None:
        self._post(NewLayers(self.subjects.layers.table, self.subjects.layers.graph, self.subjects.facts()))

    def _give_up_activations(self, reason: str) -> None:
        if not self._no_activations:
            self._no_activations = reason
            self._forward.stop()
            self._forward.take()
            self._post(Note("note", None, {"reason": f"no activations: {reason}"}))


def _never(*arguments: Any) -> bool:
    """For what has no short way."""
    return False
