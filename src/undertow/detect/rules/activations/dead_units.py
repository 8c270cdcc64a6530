"""ACT001: hidden units that are never active."""

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import LOWER_LEARNING_RATE, REVIVE_THE_UNITS
from undertow.detect.features.silent_units import SilentUnits


class DeadUnits(Condition):
    """The units of a hidden ReLU are never active.

    What it sees: The outputs of ReLU modules (and of others that are exactly zero for negative inputs), and of ReLUs
        applied as functions to the output of a layer. A layer is reported when every output was exactly zero at two
        sampled steps, or when nine of ten of its units (channels of a convolution) were silent for 1,000 samples, or
        for 250 of which the last three quarters woke none of them up. Nine of ten zero outputs are enough where the
        biases began far below zero. Named are the first such layer in execution order and the layer that feeds it.
    Why it is bad: A unit that is never active passes no gradient on: it cannot recover, and when a whole layer is dead
        everything before it stops learning. The usual causes are a large negative bias, a learning rate that once threw
        the weights far off, and inputs that are not scaled.
    When it is wrong: The share of zeros alone says nothing: many healthy networks have 70–90 % zeros, so only units
        that never speak are counted. A ReLU applied as a function to anything but the output of a layer (or its sum
        with another one) is seen through the gradient only (GRD004).
    References: Lu et al., "Dying ReLU and Initialization: Theory and Numerical Examples", 2019 (arXiv 1903.06733).
    """

    code, variant, formerly = "ACT001", "dead-units", "dead"
    stage = Stage.SIGNAL
    _units = Shared(SilentUnits)
    meaning = "Units that are off pass no gradient on: they and what lies before them cannot learn"
    remedies = (REVIVE_THE_UNITS, LOWER_LEARNING_RATE)

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._units.is_informed:
            return None
        members = self._units.members
        if not members or not structure_of(view.layout).is_hidden(members[0]):
            return self.end()
        # Which one is first decides the words: those behind it come and go.
        return self.hold(members[0], lambda: self._units.describe(view.layout))
