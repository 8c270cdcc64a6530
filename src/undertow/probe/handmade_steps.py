"""Steps of a program that moves its weights without an optimizer that tells of it.

Such a step ends when the next backward pass begins: what got a gradient and has changed since was moved by hand, or by
compiled code. A single change may be a new initialisation, so frames are held back until several passes were each
followed by one. Where an optimizer tells of its steps, it decides what a step is: what was held back is then forgotten.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.optim.optimizer import Optimizer

from undertow.probe.by_hand import ByHand
from undertow.probe.compiled_step import CompiledStep
from undertow.probe.forward import ForwardTap
from undertow.probe.layer_search import LayerSearch
from undertow.probe.module_looks import ModuleLooks, Seen
from undertow.probe.reader import Marks, TensorReader, WeightWatch
from undertow.probe.readings import NewLayers, Note, RawFrame, Reading, Slots
from undertow.probe.schedule import Governor
from undertow.probe.signals.modules import is_wrapped
from undertow.probe.step_signals import StepSignals
from undertow.probe.step_state import StepState
from undertow.probe.subjects import Subjects

_ENOUGH = 3  # changes, each after a backward pass
_ENOUGH_BESIDE = 16  # where an optimizer has told of a step before: inner loops of meta-learning are shorter

Item = RawFrame | NewLayers | Note


@dataclass(slots=True)
class _Pass:
    """A backward pass that nobody has made a step of yet."""

    marks: Marks  # of the weights that got a gradient
    gradients: Sequence[Reading] = ()  # what `torch.autograd.grad` returned, where it did
    is_counted: bool = False  # as a step, in advance
    modules: Seen | None = None


class HandmadeSteps:
    def __init__(
        self,
        subjects: Subjects,
        state: StepState,
        reader: TensorReader,
        weights: WeightWatch,
        forward: ForwardTap,
        post: Callable[[Item], float],
    ) -> None:
        self._subjects, self._state, self._reader = subjects, state, reader
        self._weights, self._forward, self._send_on = weights, forward, post
        self._heard: dict[int, weakref.ref[Optimizer]] = {}  # optimizers that tell of their steps, by id
        self._movers: list[ByHand] = []
        self._open: tuple[int, Slots] | None = None  # slots that none of those holds, as of a version of the subjects
        self._last: _Pass | None = None
        self._passes = 0  # since an optimizer has told of a step
        self._all_passes = 0
        self._in_a_row = 0  # changes since then
        self._held: list[Item] | None = None
        self.is_sure = False

    def attach(
        self,
        signals: StepSignals,
        modules: ModuleLooks,
        search: LayerSearch,
        governor: Governor,
        compile_step: Callable[[Optimizer], CompiledStep],
        send: Callable[[RawFrame], None],
        prepare_next: Callable[[], None],
    ) -> None:
        self._signals, self._modules, self._search, self._governor = signals, modules, search, governor
        self._compile, self._send, self._prepare_next = compile_step, send, prepare_next

    @property
    def waits(self) -> bool:
        """A backward pass has ended, and what becomes of it is not known."""
        return self._last is not None

    @property
    def is_alone(self) -> bool:
        """No optimizer has told of a step so far."""
        return not self._heard

    def forget(self) -> None:
        """Slots stand for other tensors from now on."""
        if self._last is not None and self._last.is_counted:
            self._take_back()
        self._last, self._open = None, None

    # -- what is held back --------------------------------------------------------------------------------

    def post(self, item: Item) -> float:
        if self._held is None:
            return self._send_on(item)
        self._held.append(item)
        return 0.0

    def hold_back(self) -> None:
        self._held = [] if self._held is None else self._held

    def _release(self) -> None:
        held, self._held, self.is_sure = self._held, None, True
        self._subjects.is_tentative = False
        self._forward.take()  # of several passes
        for item in held or ():
            self._send_on(item)

    def drop(self) -> None:
        """What was held back were no steps."""
        held, self._held = self._held, None
        if held is not None:
            self._state.step -= self._in_a_row
        self._in_a_row = 0
        for item in held or ():
            if not isinstance(item, RawFrame) and not self._subjects.is_tentative:
                self._send_on(item)

    # -- an optimizer tells of a step ---------------------------------------------------------------------

    def hear(self, optimizer: Optimizer) -> None:
        self._passes = 0
        known = self._heard.get(id(optimizer))
        if self._last is None and not self._in_a_row and known is not None and known() is optimizer:
            return
        self.forget()
        self._heard = {key: one for key, one in self._heard.items() if one() is not None}
        self._heard[id(optimizer)] = weakref.ref(optimizer)
        self.is_sure = False
        self.drop()

    # -- after a backward pass ----------------------------------------------------------------------------

    def begin(self, taken: Sequence[tuple[int, torch.Tensor]] | None = None) -> None:
        """A backward pass has ended, or `torch.autograd.grad` has returned these gradients, by slot."""
        self._passes += 1
        self._all_passes += 1
        subjects, state = self._subjects, self._state
        if (self._heard and self._passes < 2) or subjects.layout.spread is not None:
            return
        lists = subjects.lists
        present = lists.gradients_now().slots if taken is None else lists.one(sorted(slot for slot, _ in taken))
        weights = lists.weights(self._candidates(present))
        last = self._last
        if last is None or last.marks.of is not weights or not self._reader.unchanged(last.marks, weights):
            marks = self._reader.mark(weights) if len(weights.slots) else None
            last = self._last = None if marks is None else _Pass(marks)
            if last is not None and state.plan.weight:
                self._weights.before(weights, state.step)
        if last is None:
            return
        if taken is not None and state.plan.gradient:
            last.gradients = self._reader.read_these(taken)
        if self.is_sure:
            last.is_counted = True
            state.count(self._movers[-1] if self._movers else ByHand(subjects.layers))
            seen = self._modules.take({})
            last.modules = last.modules or seen
            self._prepare_next()

    def gradients_returned(self, inputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        """By `torch.autograd.grad`."""
        slot_of, watches = self._subjects.layers.slot_of, self._subjects.watches
        found = [(of, one) for of, one in zip(inputs, gradients) if one is not None and not is_wrapped(one)]
        taken = [(slot_of[id(of)], one) for of, one in found if watches(of)]
        if taken and not self._state.in_step:
            self.begin(taken)

    def _candidates(self, present: Slots) -> Slots:
        """Of these, what can be trained and is in no optimizer that tells of its steps."""
        subjects = self._subjects
        if self._open is None or self._open[0] != subjects.version:
            heard = [optimizer for one in self._heard.values() if (optimizer := one()) is not None]
            self._open = subjects.version, subjects.outside(heard)
        slots = self._open[1]
        if len(slots) < len(subjects.layers.references):
            present = subjects.lists.one(np.intersect1d(slots, present).tolist())
        return subjects.lists.trainable(present)

    # -- before the next one ------------------------------------------------------------------------------

    def finish(self, leaves: Sequence[torch.Tensor] = ()) -> None:
        """Another pass begins, from a loss of these leaves, or the watch ends: what has moved was moved by hand."""
        last, state, subjects = self._last, self._state, self._subjects
        if last is None:
            return
        slots = last.marks.of.slots
        is_replaced = subjects.replace(leaves)
        if subjects.layers.have_gone:
            self.forget()
            return
        moved = slots if is_replaced else slots[self._reader.changed(last.marks)]
        if not len(moved):  # gradients add up, or are looked at only
            if last.is_counted:
                self._take_back()
            return
        self._last = None
        mover = self._mover(moved)
        step = self._compile(mover)
        if not last.is_counted:
            state.count(mover)
        if last.gradients:
            state.now.gradients = last.gradients
        frame = step.frame(state, mover, 0.0)
        frame.is_handmade = True
        if last.modules is not None:
            last.modules.put(frame)
        subjects.zero_grads.step(step.slots)
        if state.plan.weight:
            self._weights.after(frame, step.exposed_weights, step.exposed_moved)
        self._signals.look_at_step(mover, step.slots, frame)
        if not self.is_sure:
            self.hold_back()
        self._in_a_row += 1
        self._send(frame)
        if not state.ended:  # modules that have run since belong to the next step: it was not prepared before they did
            state.ended, state.next_plan = True, self._governor.plan(state.done + 1)
        self._search.look_again()
        if not self.is_sure and self._in_a_row >= (_ENOUGH_BESIDE if self._heard else _ENOUGH):
            self._release()

    def close(self) -> None:
        """Of few passes that were all followed by a change nobody can tell more, nor need to."""
        self.finish()
        if self._held is not None:
            if self._in_a_row and self.is_alone and self._in_a_row in (self._all_passes, self._all_passes - 1):
                self._release()
            else:
                self.drop()
        if self._state.step < self._state.first_step and self._all_passes:
            passes = "1 backward pass was" if self._all_passes == 1 else f"{self._all_passes:,} backward passes were"
            reason = f"{passes} seen, but neither a step of an optimizer nor a change of what got a gradient"
            self._send_on(Note("note", None, {"reason": reason}))

    def _mover(self, moved: Slots) -> Optimizer:
        """An optimizer that does not tell of its steps, as one whose `step` is compiled; else nobody but the loop."""
        subjects = self._subjects
        optimizer = subjects.holder(moved)
        if optimizer is not None and id(optimizer) not in self._heard:
            return optimizer
        ids = subjects.layers.of_slots(moved).tolist()
        mover = next((one for one in self._movers if one.takes(ids)), None)
        if mover is None:
            mover = ByHand(subjects.layers)
            self._movers.append(mover)
        mover.add(ids)
        return mover

    def _take_back(self) -> None:
        """The step that was taken for granted: the next pass belongs to it."""
        state, last = self._state, self._last
        if last is not None:
            last.is_counted = False
            state.step -= 1
            state.ended, state.fresh = False, True
