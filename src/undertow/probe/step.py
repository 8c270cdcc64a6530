"""One watched training: listens to the taps, decides what a step is, and reads tensors at the right moments.

A step ends with an optimizer's `step()`; for loops without one see `manual_updates`. Gradients are read when the
backward pass returns (complete and not yet clipped) and compared with those the optimizer gets; weights are read right
before and after the update.
"""

import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import Optimizer

from undertow.probe import discovery, taps
from undertow.probe.activation_sampling import ActivationSampling
from undertow.probe.compiled_step import CompiledStep
from undertow.probe.distributed.local_gradients import LocalGradients
from undertow.probe.distributed.portions import gathers_parameters
from undertow.probe.forward import ForwardTap
from undertow.probe.guarded_taps import GuardedTaps
from undertow.probe.layer_search import LayerSearch
from undertow.probe.mailbox import Mailbox
from undertow.probe.manual_updates import ManualUpdates
from undertow.probe.nonfinite import Sentinels
from undertow.probe.quiet_steps import QuietSteps
from undertow.probe.reader import TensorReader, WeightWatch
from undertow.probe.readings import Note, RawFrame, Slots, inverse, number_now
from undertow.probe.schedule import Governor
from undertow.probe.step_signals import StepSignals, losses_of, scale_of
from undertow.probe.step_state import StepState
from undertow.probe.step_timer import StepTimer
from undertow.probe.subjects import Subjects
from undertow.probe.tensor_list import have_gradient, single
from undertow.probe.training_thread import TrainingThread
from undertow.probe.unseen import unseen

_MOST_COMPILED = 256
_now = time.perf_counter


class StepMachine:
    """Implements `taps.Listener`."""

    def __init__(
        self,
        subjects: Subjects,
        governor: Governor,
        mailbox: Mailbox,
        failed: Callable[[Exception], None],
        first_step: int = 0,
    ) -> None:
        self.subjects = subjects
        self.governor = governor
        self.stopped: Callable[[], object] = lambda: None  # told, by whatever thread, that this has ended
        self._state = StepState(first_step, governor.plan(0))
        self._timer = StepTimer()
        self._reader = TensorReader()
        self._weights = WeightWatch(self._reader)
        self._local = LocalGradients(subjects, self._reader)
        self._forward = ForwardTap(self._reader.kernel_for)
        self._post, self._hold = mailbox.post, mailbox.hold
        self._signals = StepSignals(self._state, subjects, self._reader, self._forward, self._timer, governor)
        self._sampling = ActivationSampling(subjects, self._state, self._forward, self._signals, governor)
        self._compiled: dict[int, CompiledStep] = {}  # by id of the optimizer
        self._stepping: CompiledStep | None = None  # the step that is under way, and then the last one
        self._last_read: CompiledStep | None = None  # the last one after which parameters and optimizer were read
        self._present: Slots | None = None  # those with a gradient after the last backward pass
        self._sentinels = Sentinels(subjects, self._reader)
        self._quiet = QuietSteps(self._state, subjects, self._signals, self._timer, governor)
        self._search = LayerSearch(subjects, self._state, self._signals, self._forward, self._post)
        self._thread = TrainingThread(subjects.layers, self._state, self._forward, self._note)
        self._manual = ManualUpdates(
            subjects, self._state, self._reader, self._weights, self._signals, self._sampling, self._search, governor,
            mailbox, self._compile, self._send, self._prepare_next,
        )  # fmt: skip
        self._taps = GuardedTaps(self._thread, subjects.layers, self._timer.always, self._find_again, self.stop, failed)
        tap = self._taps.tap
        self.before_backward = tap(self._before_backward)
        self.after_backward = tap(self._after_backward)
        self.backward_failed = tap(self._backward_failed)
        self.before_step = tap(self._before_step)
        self.after_step = tap(self._after_step)
        self.gradients_taken = tap(self._gradients_taken)
        self.gradients_returned = tap(self._manual.gradients_returned)
        self.closure_evaluated = tap(self._closure_evaluated)
        self.loss_scaled = tap(self._loss_scaled)
        self.scaler_stepped = tap(self._scaler_stepped)
        self.gradients_averaged = tap(self._gradients_averaged)
        self.saved_tensors_hooked = tap(self._saved_tensors_hooked, in_any_thread=True, reads=False)
        self.compiling = tap(self._compiling, in_any_thread=True, reads=False)
        self.exporting = tap(self._forward.stop, in_any_thread=True, reads=False)
        self.before_swap = tap(self._forget_tensors, reads=False)

    @property
    def step(self) -> int:
        return self._state.step

    # -- life ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        taps.add(self)
        if discovery.anything_compiled():
            self._compiling()
        else:
            self._forward.on_root = self._root_called
            self._forward.start()  # in the first step always: it shows which models are in use, and their order

    def look_closer(self) -> None:
        """From the background thread: an alarm was raised, so measure the next step whole."""
        self._state.alarmed = True

    def note_signal_seconds(self, seconds: float) -> None:
        """From the background thread: how long the numbers of one loss take it."""
        self._signals.collector.seconds_behind = seconds

    def finish(self) -> None:
        """By the thread that trains, before `stop`: the update after the last backward pass is read now."""
        if not self._thread.in_tap:
            with unseen():
                self._taps.tap(self._manual.close)()

    def stop(self) -> None:
        """From any thread."""
        self._taps.are_closed = True
        taps.remove(self)
        self.stopped()
        self._forward.stop()
        self._forward.take()
        self._forward.error = None
        self._local.stop()
        self._signals.flow.end()
        self._forget_tensors()
        self._state.forget()

    def _forget_tensors(self, *swapped: torch.Tensor) -> None:
        """Nothing refers to any of the user's afterwards: torch swaps none to which anybody does."""
        self._forget_slots()
        self._signals.collector.forget_tensors()
        self.subjects.forget_tensors()

    def _forget_slots(self) -> None:
        self._quiet.interrupt()
        self._compiled, self._stepping, self._last_read, self._present = {}, None, None, None
        self._state.now.forget_gradients()
        self._manual.forget()
        self._weights.forget()
        self._sentinels.forget()

    def _find_again(self) -> None:
        """Some watched tensors are gone: slots stand for others from now on, unless new ones take their places."""
        if not (self._manual.is_pending and self.subjects.free):
            self._manual.weights_gone()
            self._forget_slots()
            self._search.rescan()
            self._search.search_soon()

    # -- other taps ------------------------------------------------------------------------------------

    def _loss_scaled(self, scaler: GradScaler) -> None:
        self._quiet.interrupt()
        self._state.open()
        self._state.now.scaler = weakref.ref(scaler)
        self._state.fired.clear()

    def _saved_tensors_hooked(self) -> None:
        self._state.hooked_saved_tensors = True

    def _compiling(self) -> None:
        self._give_up_activations("the model is compiled: hooks inside it would change what is compiled")

    # -- a backward pass ----------------------------------------------------------------------------------

    def _before_backward(self, roots: tuple[Any, ...], gradients: tuple[Any, ...]) -> None:
        state, subjects = self._state, self.subjects
        self._thread.in_pass = True
        if not self._quiet.left and self._forward.running:
            self._forward.pause(True)
        if subjects.is_tentative and self._search.is_held(roots):
            self._start_over()
        if not subjects.ready and not self._discover(roots):
            return
        if not state.in_step:
            if self._manual.is_pending:
                self._manual.complete(subjects.leaves_of(roots))
            if state.ended:
                state.open()
            state.fresh = True
        elif state.now.closure_read:
            return  # LBFGS evaluates its closure many times; the first one is the gradient of this step
        now = state.now
        now.count_pass()
        is_plain = len(roots) == 1 and type(roots[0]) is torch.Tensor and single(gradients[0], torch.float32) == 1.0
        loss = single(roots[0], torch.float32) if is_plain else None
        if loss is None:
            loss = self._signals.take_losses(roots, gradients)
        else:
            now.losses.append(loss)
        is_finite = type(loss) is float and isfinite(loss)
        if is_finite and now.backward_count == 1 and now.scaler is None and not state.in_step:
            self._quiet.is_usual = True
        else:
            self._quiet.interrupt()
        if state.plan.gradient:
            now.cleared_known = True
            if not subjects.zero_grads.is_known(have_gradient(subjects.layers.references)):
                with self._timer.gradient:
                    subjects.note_cleared(self._reader)
        if self._quiet.left:
            return
        self._signals.read_loss(roots)
        if self._search.find_more(roots) and self._manual.is_alone:
            now.keep_last()
        if state.plan.gradient and subjects.layout.spread is not None and now.backward_count == 1:
            with self._timer.gradient:
                self._local.begin()
        if not is_finite and (origin := self._signals.find_nonfinite(roots)) is not None:
            self._post(origin)
        if state.want_walk:
            self._search.walk(roots)

    def _after_backward(self) -> None:
        state, now, subjects = self._state, self._state.now, self.subjects
        self._thread.in_pass = False
        if not self._quiet.left and self._forward.paused:
            self._forward.pause(False)
            self._signals.backward_ended()
        if not subjects.ready or (state.in_step and now.closure_read):
            return
        now.closure_read = state.in_step
        if subjects.zero_grads.waiting:
            subjects.zero_grads.note_added(subjects.layers.references)
        if now.scaler is not None:
            now.scale = scale_of(now.scaler())
        if not state.plan.gradient and not state.bad_seen and self._sentinels.went_bad():
            self._quiet.interrupt()
            state.bad_seen = True
            state.measure_now()
        if state.pending is not None:
            self._emit(state.pending)
        elif state.plan.gradient:
            began = 0.0 if self._quiet.left else _now()  # the costs of quiet steps are not told apart
            factor = 1.0 if now.scaler is None else inverse(now.scale)
            gradients = subjects.lists.all_gradients
            read = None if gradients is None else self._reader.read_and_mark(gradients, factor)
            if gradients is None or read is None:
                gradients = subjects.lists.gradients_now()
                read = self._reader.read_and_mark(gradients, factor)
            now.gradients, now.marks = read or ((), None)
            now.note_pass()
            if gradients.slots is not self._present:
                self._quiet.interrupt()
                self._present = gradients.slots
                self._signals.note_present(gradients.slots)
            if not self._quiet.left and subjects.layout.spread is not None:
                now.local = [*now.local, *self._local.end(factor)]
            if began:
                self._timer.gradient.seconds += _now() - began
        if not self._quiet.left and not state.in_step:
            self._manual.backward_ended()

    def _backward_failed(self) -> None:
        """For want of memory, say: a program that goes on may try again."""
        state = self._state
        self._thread.in_pass = False
        self._quiet.interrupt()
        if self._forward.paused:
            self._forward.pause(False)
            self._signals.backward_ended()
        if self.subjects.ready and not (state.in_step and state.now.closure_read):
            state.now.drop_pass()

    def _gradients_averaged(self, passes: Any) -> None:
        """Of what was added up over several passes the mean is taken: that is the gradient, and its loss the loss."""
        state, now, passes = self._state, self._state.now, float(passes)
        if passes == 1.0:
            return
        self._quiet.interrupt()
        now.losses = [loss / passes for loss in now.losses]
        if self.subjects.ready and state.plan.gradient and now.gradients:
            with self._timer.gradient:
                read = self._reader.read_and_mark(self.subjects.lists.gradients_now(), inverse(now.scale))
                now.gradients, now.marks = read or ((), None)

    def _gradients_taken(self, outputs: tuple[Any, ...], inputs: tuple[Any, ...], is_final: bool) -> None:
        """`torch.autograd.grad`: of interest when it differentiates by watched parameters."""
        self._quiet.interrupt()
        if not self.subjects.ready and not self._discover(outputs, by=inputs if is_final else ()):
            return
        if self._manual.is_pending and not self._state.in_step:
            self._manual.complete(inputs)
        if any(self.subjects.watches(tensor) for tensor in inputs):
            self._state.open()
            self._state.fresh = True
            self._state.now.count_taken(losses_of(outputs))
            self._search.walk(outputs)

    # -- an optimizer step --------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        state = self._state
        state.fired.add(id(optimizer))
        if self.subjects.is_tentative:
            self._start_over()
        if not self.subjects.ready and not self._discover(stepping=optimizer):
            return
        step = self._stepping
        if step is None or not self._holds(step, optimizer):
            step = self._compile(optimizer)
        if not len(step.slots):
            return
        self._manual.step_reported(optimizer)
        state.in_step = True
        state.count(optimizer)
        now, began = state.now, 0.0 if self._quiet.left else _now()
        now.stepped = None
        if has_closure:
            self._quiet.interrupt()
        elif state.plan.gradient:
            if not step.read_gradients(self._reader, now, optimizer):
                self._quiet.interrupt()
            if began:
                self._timer.gradient.seconds += (ended := _now()) - began
                began = ended
        if state.plan.weight:
            self._weights.before(step.moved, state.step if state.shared else state.step - 1)
            if began:
                self._timer.weight.seconds += _now() - began

    def _closure_evaluated(self, optimizer: Optimizer) -> None:
        """A closure may clip what its backward pass gave. Of several evaluations the first one is this step's."""
        state = self._state
        if not state.in_step or state.now.closure_ended:
            return
        state.now.closure_ended = True
        step = self._compile(optimizer)
        if state.plan.gradient and len(step.slots):
            with self._timer.gradient:
                step.read_gradients(self._reader, state.now, optimizer)

    def _compile(self, optimizer: Optimizer) -> CompiledStep:
        """What to do when this optimizer steps: as the last time, unless anything has changed.

        A new optimizer can bring new tensors, and slots then stand for other tensors than those that the backward
        pass of this step was read by.
        """
        step = self._stepping
        if step is not None and self._holds(step, optimizer):
            return step
        self._quiet.interrupt()
        step = self._compiled.get(id(optimizer))
        if step is None or not self._holds(step, optimizer):
            layout = self.subjects.layout
            slots = self.subjects.slots_of(optimizer, self._search.post_layers)
            if self.subjects.layout is not layout:
                self._state.now.forget_gradients()
                self._state.want_walk = True
            if len(self._compiled) >= _MOST_COMPILED:  # optimizers made anew for every step
                self._compiled.clear()
            step = self._compiled[id(optimizer)] = CompiledStep(self.subjects, optimizer, slots)
        self._stepping = step
        return step

    def _holds(self, step: CompiledStep, optimizer: Optimizer) -> bool:
        plan = self._state.next_plan if self._state.ended else self._state.plan
        step.is_measured = plan.gradient or plan.weight
        return step.holds(optimizer)

    def _after_step(self, optimizer: Optimizer) -> None:
        state, step = self._state, self._stepping
        is_under_way, state.in_step = state.in_step, False
        if not self.subjects.ready:
            return
        if not is_under_way or step is None or step.optimizer() is not optimizer:
            step = self._compile(optimizer)
        if not len(step.slots):
            state.forget()  # another model's step: the backward pass before it was not ours
            self._signals.collector.forget()
            return
        self._thread.has_stepped = True
        skipped = 0.0 if state.now.scaler is None else number_now(getattr(optimizer, "found_inf", None), 0.0)
        frame = step.frame(state, optimizer, skipped)
        self.subjects.zero_grads.step(step.slots)
        if state.plan.weight:
            began = 0.0 if self._quiet.left else _now()
            if state.shared:
                self._weights.after(frame, self.subjects.lists.weights(step.slots), step.moved)
            else:
                self._weights.after(frame, step.exposed_weights, step.exposed_moved)
            if began:
                self._timer.weight.seconds += _now() - began
        if self._quiet.left:
            self._emit_quietly(frame, step)
            return
        if not (self._quiet.is_usual and step is self._last_read and self._signals.skips_step(step.slots)):
            with self._timer.signal:
                self._signals.read_step(optimizer, step.slots, frame)
            self._last_read = step
        self._finish(frame)
        self._quiet.expect(step)

    def _scaler_stepped(self, optimizer: Optimizer) -> None:
        """A loss scaler that found infinities does not call the optimizer: the step counts and is marked."""
        state = self._state
        self._quiet.interrupt()
        if id(optimizer) in state.fired or not self.subjects.ready:
            state.fired.discard(id(optimizer))
            return
        step = self._compile(optimizer)
        if len(step.slots):
            self._manual.step_reported(optimizer)
            state.count(optimizer)
            state.now.stepped = None
            frame = step.frame(state, optimizer, 1.0)
            self.subjects.zero_grads.step(step.slots)
            self._finish(frame)

    # -- a frame ------------------------------------------------------------------------------------------

    def _finish(self, frame: RawFrame) -> None:
        if taps.in_backward():  # many small optimizers, one per parameter: one frame when the pass is over
            if self._state.pending is None:
                self._state.pending = frame
            else:
                self._state.pending.absorb(frame)
            self._state.now.gradients = ()
            return
        self._emit(frame)

    def _emit(self, frame: RawFrame) -> None:
        self._send(frame)
        self._prepare_next()

    def _send(self, frame: RawFrame) -> None:
        state, forward = self._state, self._forward
        if forward.error is not None:
            raise forward.error
        state.pending = None
        frame.complete = self._reader.events()
        if state.shared and not frame.joined:  # the second part of a step
            self._post(frame)
            return
        now = _now()
        seconds = frame.scalars["step_time"] = now - state.began
        spent = self._timer.take()
        sampled = None if frame.is_manual else self._sampling.take(spent)
        if sampled is not None:
            sampled.put(frame)
            frame.output_gradient_factor = inverse(state.now.scale)
        frame.signals = self._signals.collector.take(spent.get("signal", 0.0), self.governor.allowed)
        waited = self._post(frame)  # for the background thread, which counts its time itself
        self._timer.always.seconds -= waited
        self.governor.spent(spent, seconds, first=state.step == state.first_step)
        state.began = now + waited

    def _prepare_next(self) -> None:
        state = self._state
        state.ended = True
        if not self._manual.is_pending:
            self._search.rescan_if_due()
        plan = self.governor.plan(state.done + 1)
        if state.modes_changed and self.governor.activations is not False:
            # With the gradients of the same step: what runs and gets none has been cut off.
            plan = replace(plan, activation=True, gradient=plan.gradient or self.governor.every is None)
            state.modes_changed = False
        if state.fed_changed and self.governor.activations is None:
            plan = replace(plan, gradient=True, activation=True)
            state.fed_changed = False
        if state.alarmed:
            plan, state.alarmed = self.governor.closer(plan), False
        state.next_plan = self._sampling.prepare(plan)

    def _emit_quietly(self, frame: RawFrame, step: CompiledStep) -> None:
        """In a step in which nothing else is due."""
        state, now = self._state, _now()
        seconds = frame.scalars["step_time"] = now - state.began
        state.ended = True
        waited = self._post(frame)  # for the background thread, which counts its time itself
        self._timer.always.seconds -= waited
        state.began = now + waited
        self._quiet.end(step, seconds)

    # -- the rest -----------------------------------------------------------------------------------------

    def _root_called(self, module: torch.nn.Module) -> None:
        """A model that gathers its parameters while it runs has others then than those its optimizer holds: its
        layers are found before."""
        if self.subjects.ready:
            self._forward.on_root = None
        elif gathers_parameters(module):
            self._taps.tap(self._discover)()

    def _start_over(self) -> None:
        """What was found before any optimizer was known to step is not what is trained, or not all of it."""
        self._forget_slots()
        self._manual.discard()
        self.subjects.start_over()
        self._state.forget()
        self._state.ended, self._state.want_walk = False, True
        self._signals.forget()
        self._search.start_over()

    def _discover(
        self, loss: tuple[Any, ...] = (), stepping: Optimizer | None = None, by: tuple[Any, ...] | None = None
    ) -> bool:
        if not self._search.discover(loss, stepping, by):
            return False
        if self.subjects.is_tentative:
            self._hold()
        self._thread.follow()
        if self.subjects.is_compiled:
            self._compiling()
        taps.install_late()
        self._search.post_layers()
        return True

    def _give_up_activations(self, reason: str) -> None:
        if not self._sampling.none_because:
            self._sampling.none_because = reason
            self._forward.stop()
            self._forward.take()
            self._note(f"no activations: {reason}")

    def _note(self, reason: str) -> None:
        self._post(Note("note", None, {"reason": reason}))
