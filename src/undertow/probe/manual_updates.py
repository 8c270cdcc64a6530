"""Steps of a training whose weights change without an optimizer that reports its steps.

Such a step ends when the next backward pass begins: weights that got a gradient and have changed since were updated by
the loop itself, or by compiled code. A single change may be a new initialisation, so the mailbox holds frames until
several passes were each followed by an update. An optimizer that reports its steps decides what a step is: held frames
are then discarded.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.optim.optimizer import Optimizer

from undertow.probe.activation_sampling import ActivationSampling, SampledModules
from undertow.probe.compiled_step import CompiledStep
from undertow.probe.layer_search import LayerSearch
from undertow.probe.mailbox import Mailbox
from undertow.probe.manual_optimizer import ManualOptimizer
from undertow.probe.reader import Marks, TensorReader, WeightWatch
from undertow.probe.readings import Note, RawFrame, Reading, Slots
from undertow.probe.schedule import Governor, Plan
from undertow.probe.signals.modules import is_wrapped
from undertow.probe.step_signals import StepSignals
from undertow.probe.step_state import StepReadings, StepState
from undertow.probe.subjects import Subjects

_ENOUGH = 3  # updates, each after a backward pass
_ENOUGH_BESIDE = 16  # where there is an optimizer, which may report its own: inner loops of meta-learning are shorter
_IN_VAIN = 8  # passes that no update has followed: few micro-batches are more, so this may be another model's training


@dataclass(slots=True)
class _Pass:
    """A backward pass that no step has followed yet."""

    marks: Marks  # of the weights that got a gradient
    gradients: Sequence[Reading] = ()  # what `torch.autograd.grad` returned, where it did
    is_counted: bool = False  # as a step, in advance
    modules: SampledModules | None = None


class _Unconfirmed(NamedTuple):
    """What a step may have to be given back that was none."""

    readings: StepReadings
    plan: Plan
    slots: Slots
    version: int  # of the subjects


class ManualUpdates:
    def __init__(
        self,
        subjects: Subjects,
        state: StepState,
        reader: TensorReader,
        weights: WeightWatch,
        signals: StepSignals,
        sampling: ActivationSampling,
        search: LayerSearch,
        governor: Governor,
        mailbox: Mailbox,
        compile_step: Callable[[Optimizer], CompiledStep],
        send: Callable[[RawFrame], None],
        prepare_next: Callable[[], None],
    ) -> None:
        self._subjects, self._state, self._reader, self._weights = subjects, state, reader, weights
        self._signals, self._sampling, self._search, self._governor = signals, sampling, search, governor
        self._mailbox, self._compile, self._send, self._prepare_next = mailbox, compile_step, send, prepare_next
        self._reporting: dict[int, weakref.ref[Optimizer]] = {}  # optimizers that report their steps, by id
        self._stand_ins: list[ManualOptimizer] = []
        self._unclaimed: tuple[int, Slots] | None = None  # slots that none of those holds, by version of the subjects
        self._last: _Pass | None = None
        self._passes = 0  # since the last reported step
        self._all_passes = 0
        self._updates = 0  # since the last reported step
        self._is_confirmed = False
        self._unconfirmed: list[_Unconfirmed] = []
        self._in_vain = 0  # passes in a row that no update has followed

    @property
    def is_alone(self) -> bool:
        """No optimizer has reported a step so far."""
        return not self._reporting

    @property
    def is_pending(self) -> bool:
        """A backward pass has ended, and it is not known whether an update follows."""
        return self._last is not None

    def forget(self) -> None:
        """Slots stand for other tensors from now on."""
        if self._last is not None and self._last.is_counted:
            self._uncount()
        self._last, self._unclaimed = None, None

    def weights_gone(self) -> None:
        """Some, before an update could be read: the passes of that step are nobody's."""
        is_lost = self.is_pending and self.is_alone
        self.forget()
        if is_lost:
            self._state.forget()

    def _confirm(self) -> None:
        self._is_confirmed, self._subjects.is_tentative = True, False
        self._unconfirmed = []
        self._sampling.forget()  # modules of several passes
        self._mailbox.release()

    def discard(self) -> None:
        """Held frames were no steps."""
        if self._mailbox.is_holding:
            self._state.step -= self._updates
            self._mailbox.discard(everything=self._subjects.is_tentative)
        self._updates, self._unconfirmed = 0, []

    def step_reported(self, optimizer: Optimizer) -> None:
        self._passes = 0
        known = self._reporting.get(id(optimizer))
        if self._last is None and not self._updates and known is not None and known() is optimizer:
            return
        self.forget()
        self._reporting = {key: one for key, one in self._reporting.items() if one() is not None}
        self._reporting[id(optimizer)] = weakref.ref(optimizer)
        self._is_confirmed = False
        unconfirmed = self._unconfirmed
        self.discard()
        self._give_back(unconfirmed)

    def _give_back(self, unconfirmed: Sequence[_Unconfirmed]) -> None:
        """The passes before these belong to the step that is reported, as those of weights that were perturbed."""
        for one in reversed(unconfirmed):
            self._state.now.add_earlier(one.readings)
            self._state.plan = one.plan
            if one.version == self._subjects.version:
                self._subjects.zero_grads.take_back(one.slots)

    # -- after a backward pass ----------------------------------------------------------------------------

    def backward_ended(self, returned: Sequence[tuple[int, torch.Tensor]] | None = None) -> None:
        """`returned`: gradients by slot, of a call of `torch.autograd.grad`."""
        self._passes += 1
        self._all_passes += 1
        subjects, state = self._subjects, self._state
        if (self._reporting and self._passes < 2) or subjects.layout.spread is not None:
            return
        if not len(self._unclaimed_slots()):
            return
        lists = subjects.lists
        present = lists.gradients_now().slots if returned is None else lists.one(sorted(slot for slot, _ in returned))
        weights = lists.weights(self._candidates(present))
        last = self._last
        if last is None or last.marks.of is not weights or not self._reader.unchanged(last.marks, weights):
            marks = self._reader.mark(weights) if len(weights.slots) else None
            last = self._last = None if marks is None else _Pass(marks)
            if last is not None and state.plan.weight:
                self._weights.before(weights, state.step)
        if last is None:
            return
        if returned is not None and state.plan.gradient:
            last.gradients = self._reader.read_these(returned)
        if self._is_confirmed:
            last.is_counted = True
            state.count(self._stand_ins[-1] if self._stand_ins else ManualOptimizer(subjects.layers))
            sampled = self._sampling.take({})
            last.modules = last.modules or sampled
            self._prepare_next()

    def gradients_returned(self, inputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        """By `torch.autograd.grad`."""
        if self._reporting and not len(self._unclaimed_slots()):
            return
        slot_of, watches = self._subjects.layers.slot_of, self._subjects.watches
        found = [(of, one) for of, one in zip(inputs, gradients) if one is not None and not is_wrapped(one)]
        returned = [(slot_of[id(of)], one) for of, one in found if watches(of)]
        if returned and not self._state.in_step:
            self.backward_ended(returned)

    def _candidates(self, present: Slots) -> Slots:
        """Those that can be trained and are in no reporting optimizer."""
        subjects, slots = self._subjects, self._unclaimed_slots()
        if len(slots) < len(subjects.layers.references):
            present = subjects.lists.one(np.intersect1d(slots, present).tolist())
        return subjects.lists.trainable(present)

    def _unclaimed_slots(self) -> Slots:
        subjects = self._subjects
        if self._unclaimed is None or self._unclaimed[0] != subjects.version:
            reporting = [optimizer for one in self._reporting.values() if (optimizer := one()) is not None]
            self._unclaimed = subjects.version, subjects.outside(reporting)
        return self._unclaimed[1]

    # -- before the next one, or at the end ---------------------------------------------------------------

    def complete(self, leaves: Sequence[torch.Tensor] = ()) -> None:
        """The last pass was followed by an update if its weights have changed. `leaves`: of the next loss."""
        last, state, subjects = self._last, self._state, self._subjects
        if last is None:
            return
        slots = last.marks.of.slots
        is_replaced = subjects.replace(leaves)
        if subjects.layers.have_gone:
            self.weights_gone()
            return
        moved = slots if is_replaced else slots[self._reader.changed(last.marks)]
        if not len(moved):  # gradients are accumulated, or only inspected
            if last.is_counted:
                self._uncount()
            self._in_vain += 1
            if self._in_vain >= _IN_VAIN and not self._in_vain & (self._in_vain - 1):
                self._search.search_soon()
            return
        self._last, self._in_vain = None, 0
        optimizer = self._optimizer_of(moved)
        step = self._compile(optimizer)
        if not last.is_counted:
            state.count(optimizer)
        if last.gradients:
            state.now.gradients = last.gradients
        frame = step.frame(state, optimizer, 0.0)
        frame.is_manual = True
        if last.modules is not None:
            last.modules.put(frame)
        subjects.zero_grads.step(step.slots)
        if state.plan.weight:
            self._weights.after(frame, step.exposed_weights, step.exposed_moved)
        self._signals.read_step(optimizer, step.slots, frame)
        if not self._is_confirmed:
            self._mailbox.hold()
            self._unconfirmed.append(_Unconfirmed(state.now, state.plan, step.slots, subjects.version))
        self._updates += 1
        self._send(frame)
        if not state.ended:  # the next step was not prepared, but modules that have run since belong to it
            state.ended, state.next_plan = True, self._governor.plan(state.done + 1)
        self._search.rescan_if_due()
        is_beside = self._reporting or subjects.optimizers.real
        if not self._is_confirmed and self._updates >= (_ENOUGH_BESIDE if is_beside else _ENOUGH):
            self._confirm()

    def close(self) -> None:
        """A few passes, each followed by an update, are steps if no optimizer has reported any."""
        self.complete()
        if self._mailbox.is_holding:
            if self._updates and not self._reporting and self._all_passes - self._updates in (0, 1):
                self._confirm()
            else:
                self.discard()
        if self._state.step < self._state.first_step:
            self._say_why_nothing()

    def _say_why_nothing(self) -> None:
        if self._all_passes:
            passes = "1 backward pass was" if self._all_passes == 1 else f"{self._all_passes:,} backward passes were"
            reason = f"{passes} seen, but neither a step of an optimizer nor a change of what got a gradient"
        elif self._sampling.none_because:
            reason = "neither a backward pass nor a step of an optimizer was seen: what is compiled whole is hidden"
        else:
            return
        self._mailbox.post(Note("note", None, {"reason": reason}))

    def _optimizer_of(self, moved: Slots) -> Optimizer:
        """One that does not report its steps, as when its `step` is compiled; else a stand-in for the loop."""
        subjects = self._subjects
        optimizer = subjects.holder(moved)
        if optimizer is not None and id(optimizer) not in self._reporting:
            return optimizer
        ids = subjects.layers.of_slots(moved).tolist()
        stand_in = next((one for one in self._stand_ins if one.shares(ids)), None)
        if stand_in is None:
            stand_in = ManualOptimizer(subjects.layers)
            self._stand_ins.append(stand_in)
        stand_in.add(ids)
        return stand_in

    def _uncount(self) -> None:
        """No update followed the last pass: the next one belongs to the same step."""
        state, last = self._state, self._last
        if last is not None:
            last.is_counted = False
            state.step -= 1
            state.ended, state.fresh = False, True
