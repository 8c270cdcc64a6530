"""NUM004: a module puts out NaN or infinity, and nothing comes of it."""

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.nonfinite_outputs import NonfiniteOutputs
from undertow.detect.features.remedies import FIND_THE_OPERATION, GUARD_THE_OPERATION, KEEP_VALUES_IN_RANGE
from undertow.schema import Severity


class NonfiniteOutputWithoutHarm(Condition):
    """A module puts out NaN or infinity, and neither the loss nor the weights are touched by it.

    What it sees: Non-finite outputs at a step whose loss and gradients are all finite, or which a loss scaler skipped.
    Why it is bad: It mostly is not: masks hold minus infinity by design, and a scaler that skips a step does its work.
        This is a remark, never an alarm.
    When it is wrong: The counts are exact.
    References: PyTorch documentation, "Numerical accuracy".
    """

    code, variant, formerly = "NUM004", "nonfinite-output-without-harm", "masked"
    stage, is_exact = Stage.NONFINITE, True
    _outputs = Shared(NonfiniteOutputs)
    meaning = "Nothing that is learnt depends on it"
    remedies = (GUARD_THE_OPERATION, KEEP_VALUES_IN_RANGE, FIND_THE_OPERATION)

    def observe(self, view: FrameView) -> Judgement | None:
        outputs = self._outputs
        if not outputs.is_informed or outputs.weights_are_nonfinite:
            return None
        if not outputs.hit or outputs.is_harmful:
            return self.end()
        return self.hold((outputs.hit[0], view.skipped), lambda: self._describe(view))

    def _describe(self, view: FrameView) -> Judgement:
        sentence, _, evidence = self._outputs.describe(view)
        why = "the loss scaler skipped the step" if view.skipped else "neither the loss nor any gradient was touched"
        return Judgement(Severity.INFO, (self._outputs.hit[0],), view.step, 1.0, f"{sentence}; {why}.", evidence)
