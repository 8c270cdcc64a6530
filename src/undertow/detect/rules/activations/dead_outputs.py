"""ACT001: predictions behind a ReLU that are always zero."""

from dataclasses import replace

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import FREE_THE_LAST_LAYER, REVIVE_THE_UNITS
from undertow.detect.features.silent_units import SilentUnits


class DeadOutputs(Condition):
    """Half of the model's own outputs or more, behind a ReLU, are never active.

    What it sees: The outputs of a ReLU behind the last layer, where the loss compares them with targets. It is reported
        when all of them were exactly zero at two sampled steps, or half of the units were silent for 1,000 samples.
    Why it is bad: Such an output can never be predicted to be anything but zero, and gets no gradient that could change
        that.
    When it is wrong: Targets that are zero for half of the outputs in all samples. A hinge that is content stands last,
        too, and is not judged.
    References: Lu et al., "Dying ReLU and Initialization: Theory and Numerical Examples", 2019 (arXiv 1903.06733).
    """

    code, variant = "ACT001", "dead-outputs"
    stage = Stage.SIGNAL
    _units = Shared(SilentUnits)
    meaning = "Outputs that are off pass no gradient on: they and what lies before them cannot learn"
    remedies = (FREE_THE_LAST_LAYER, REVIVE_THE_UNITS)

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._units.is_informed:
            return None
        members = self._units.members
        if not members or structure_of(view.layout).is_hidden(members[0]):
            return self.end()
        return self.hold(members[0], lambda: self._describe(view))

    def _describe(self, view: FrameView) -> Judgement:
        judgement = self._units.describe(view.layout)
        return replace(judgement, summary=f"{judgement.summary} It cuts off the model's own output.")
