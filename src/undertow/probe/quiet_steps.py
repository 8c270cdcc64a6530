"""Steps in which nothing can be due but gradients, weights and updates: nobody need ask, nor account for each."""

from undertow.probe.compiled_step import CompiledStep
from undertow.probe.schedule import Governor
from undertow.probe.step_signals import StepSignals
from undertow.probe.step_state import StepState
from undertow.probe.step_timer import StepTimer
from undertow.probe.subjects import Subjects

_FIRST = 5  # steps in which layers are still being found


class QuietSteps:
    def __init__(
        self, state: StepState, subjects: Subjects, signals: StepSignals, timer: StepTimer, governor: Governor
    ) -> None:
        self._state, self._subjects, self._signals = state, subjects, signals
        self._timer, self._governor = timer, governor
        self.left = 0  # to come
        self.is_usual = False  # so far, this step is like the one before
        self._rested = 0  # that nobody has accounted for, and how long they took
        self._rested_seconds = 0.0

    def expect(self, step: CompiledStep) -> None:
        self.left = self._count(step)

    def _count(self, step: CompiledStep) -> int:
        """How many steps like this one: with one backward pass, neither loss scale nor closure, and a gradient where
        there was one.
        """
        state, subjects, now = self._state, self._subjects, self._state.now
        if not (self.is_usual and self._governor.is_the_same_always) or state.done < _FIRST or state.shared:
            return 0
        if state.pending is not None or state.next_plan.activation or state.want_walk or self._signals.sees_modules:
            return 0
        if subjects.layout.spread is not None or not subjects.optimizers.are_one or now.marks is None:
            return 0
        present = subjects.lists.gradients_now().slots
        if (
            not now.covers(present)
            or subjects.lists.with_gradient(step.slots) is not present
            or now.marks.native is None
        ):
            return 0
        rescan = subjects.steps_until_due(state.done) - 1
        return min(self._signals.collector.idle_steps(step.slots, governed=False), rescan)

    def end(self, step: CompiledStep, seconds: float) -> None:
        """One of them has ended."""
        self._rested += 1
        self._rested_seconds += seconds
        self.left -= 1
        if not self.left:
            self._account()
            self.expect(step)

    def interrupt(self) -> None:
        """This step is not like the one before: whatever may be due in it is asked for."""
        self.is_usual = False
        if self.left or self._rested:
            self.left = 0
            self._account()

    def _account(self) -> None:
        """For the steps in which nobody did."""
        steps, seconds, self._rested, self._rested_seconds = self._rested, self._rested_seconds, 0, 0.0
        if steps:
            self._signals.collector.rest(steps)
            self._governor.spent(self._timer.take(), seconds, first=False, steps=steps)
