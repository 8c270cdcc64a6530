"""Looks at modules: at which of them in the next step, and what came of the one that ends."""

from dataclasses import dataclass, replace

from undertow.probe.forward import NOT_RUN, ForwardTap, ModuleReading
from undertow.probe.readings import RawFrame
from undertow.probe.rotation import Rotation
from undertow.probe.schedule import Governor, Plan
from undertow.probe.step_signals import StepSignals
from undertow.probe.step_state import StepState
from undertow.probe.subjects import Subjects

ROUND = "activation_round"  # scalar: see docs/capture.md


@dataclass(slots=True)
class Seen:
    modules: dict[int, ModuleReading]  # by layer
    share: float | None = None  # of a round of looks at some modules each, up to this one

    def put(self, frame: RawFrame) -> None:
        frame.modules = self.modules
        if self.modules and self.share is not None:
            frame.scalars[ROUND] = self.share


class ModuleLooks:
    def __init__(
        self, subjects: Subjects, state: StepState, forward: ForwardTap, signals: StepSignals, governor: Governor
    ) -> None:
        self._subjects, self._state, self._forward = subjects, state, forward
        self._signals, self._governor = signals, governor
        self._rotation = Rotation()
        self.none_because = ""

    def prepare(self, plan: Plan) -> Plan:
        """For the step that comes next, whose plan speaks of looks at all modules only."""
        forward, look = self._forward, None
        if not plan.activation and not self.none_because and self._governor.takes_turns:
            look = self._rotation.next(self._state.done + 1, *self._governor.for_modules(plan))
            plan = replace(plan, activation=look is not None)
        if plan.activation and not self.none_because:
            forward.start(None if look is None or look.is_whole else look)
        else:
            forward.look = None
            if forward.running:
                forward.stop()
        return plan

    def take(self, spent: dict[str, float]) -> Seen | None:
        """What has been seen in the step that ends; what that took goes to the other costs of the step."""
        forward, look = self._forward, self._forward.look
        if not forward.readings and look is None:
            return None
        of_graph, known = spent.pop("activation", 0.0), self._subjects.layers.module_layer
        seen = Seen({}, None if look is None else look.share)
        if forward.readings and self._state.plan.activation:
            seen.modules = self._signals.module_readings()
            self._signals.collector.note_data(forward.data, forward.data_address)
            idle = look.measured - forward.readings.keys() if look is not None else ()
            seen.modules |= {known[module]: NOT_RUN for module in idle if module in known}
        if look is not None:
            spent["rotation"] = self._rotation.note(forward.readings, of_graph)
        else:
            spent["activation"] = of_graph + forward.seconds
            of_graph = of_graph if self._signals.collector.sees_graph else 0.0
            self._rotation.learn(forward.readings, known, map(id, forward.roots_called), of_graph)
        self._governor.round_seconds = self._rotation.seconds
        forward.take()
        return seen
