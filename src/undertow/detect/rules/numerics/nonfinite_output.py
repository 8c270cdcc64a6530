"""NUM004: a module puts out NaN or infinity, and loss or gradients catch it."""

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.nonfinite_outputs import NonfiniteOutputs
from undertow.detect.features.remedies import FIND_THE_OPERATION, GUARD_THE_OPERATION, KEEP_VALUES_IN_RANGE
from undertow.schema import Severity


class NonfiniteOutput(Condition):
    """A module puts out NaN or infinity, and the loss or a gradient is non-finite at the same step.

    What it sees: The number of NaN and infinite elements in the output of every module, at the steps at which outputs
        are sampled: always the first two, later every now and then. The first module in forward order is named; those
        after it only pass it on. The largest finite value of the module before it is evidence of an overflow.
    Why it is bad: Everything that follows is NaN too: the loss, then every gradient, then every weight.
    When it is wrong: The counts are exact. Once a weight is non-finite (NUM003), nothing new is said. Where a function
        uses the weights of a module before it without calling that module, both are named.
    References: PyTorch documentation, "Numerical accuracy".
        Micikevicius et al., "Mixed Precision Training", 2017 (arXiv 1710.03740).
    """

    code, variant, formerly = "NUM004", "nonfinite-output", "output"
    stage, is_exact = Stage.NONFINITE, True
    _outputs = Shared(NonfiniteOutputs)
    meaning = "Everything computed from it is NaN too, and so is the loss"
    remedies = (GUARD_THE_OPERATION, KEEP_VALUES_IN_RANGE, FIND_THE_OPERATION)

    def observe(self, view: FrameView) -> Judgement | None:
        outputs = self._outputs
        if not outputs.is_informed:
            return None
        if outputs.weights_are_nonfinite:
            return self.stay()
        if not outputs.hit or not outputs.is_harmful:
            return self.end()
        return self.hold(outputs.hit[0], lambda: self._describe(view))

    def _describe(self, view: FrameView) -> Judgement:
        sentence, unseen, evidence = self._outputs.describe(view)
        layers, confidence = (*unseen, self._outputs.hit[0]), 0.8 if unseen else 1.0
        return Judgement(Severity.CRITICAL, layers, view.step, confidence, f"{sentence}.", evidence)
