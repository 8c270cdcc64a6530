"""Which modules the next step samples, and what the step that ends has sampled."""

from dataclasses import dataclass, replace

from undertow.probe.flow_graph import FlowReading
from undertow.probe.forward import NOT_RUN, ForwardTap, ModuleReading
from undertow.probe.readings import RawFrame
from undertow.probe.rotation import Rotation
from undertow.probe.schedule import Governor, Plan
from undertow.probe.step_signals import StepSignals
from undertow.probe.step_state import StepState
from undertow.probe.subjects import Subjects
from undertow.schema.quantities import ACTIVATION_ROUND


@dataclass(slots=True)
class SampledModules:
    readings: dict[int, ModuleReading]  # by layer
    share: float | None = None  # of all modules that the round has reached, where some are sampled at a time
    flow: FlowReading | None = None

    def put(self, frame: RawFrame) -> None:
        frame.modules, frame.flow = self.readings, self.flow
        if self.readings and self.share is not None:
            frame.scalars[ACTIVATION_ROUND] = self.share


class ActivationSampling:
    def __init__(
        self, subjects: Subjects, state: StepState, forward: ForwardTap, signals: StepSignals, governor: Governor
    ) -> None:
        self._subjects, self._state, self._forward = subjects, state, forward
        self._signals, self._governor = signals, governor
        self._rotation = Rotation()
        self.none_because = ""

    def prepare(self, plan: Plan) -> Plan:
        """For the next step, whose plan says only whether all modules are sampled."""
        forward, sample = self._forward, None
        if not plan.activation and not self.none_because and self._governor.takes_turns:
            sample = self._rotation.next(self._state.done + 1, *self._governor.for_modules(plan))
            plan = replace(plan, activation=sample is not None)
        if plan.activation and not self.none_because:
            forward.start(None if sample is None or sample.is_whole else sample)
        else:
            forward.sample = None
            if forward.running:
                forward.stop()
        return plan

    def forget(self) -> None:
        self._forward.take()
        self._signals.flow.take()

    def take(self, spent: dict[str, float]) -> SampledModules | None:
        """What the step that ends has sampled; what that cost is added to the costs of the step."""
        forward, sample = self._forward, self._forward.sample
        if not forward.readings and sample is None:
            return None
        of_graph, known = spent.pop("activation", 0.0), self._subjects.layers.module_layer
        sampled = SampledModules({}, None if sample is None else sample.share)
        sending = forward.send()
        if forward.readings and self._state.plan.activation:
            sampled.readings = self._signals.module_readings()
            self._signals.collector.note_data(forward.data, forward.data_address)
            idle = sample.measured - forward.readings.keys() if sample is not None else ()
            sampled.readings |= {known[module]: NOT_RUN for module in idle if module in known}
        sampled.flow = self._signals.flow.take()
        if sample is not None:
            spent["rotation"] = self._rotation.note(forward.readings, of_graph)
        else:
            spent["activation"] = of_graph + forward.seconds + sending
            of_graph = of_graph if self._signals.reads_graph else 0.0
            self._rotation.learn(forward.readings, known, map(id, forward.roots_called), of_graph, sending)
        self._governor.round_seconds = self._rotation.seconds
        forward.take()
        return sampled
