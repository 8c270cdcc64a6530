"""DAT003: regression targets beyond the range of the output function."""

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.module_structure import NONE
from undertow.detect.features.output_layer import output_layers
from undertow.detect.features.target_scale import SCALE_THE_TARGETS, TargetScale
from undertow.schema import Remedy, Severity


class UnreachableTargets(Condition):
    """Regression targets lie beyond the range of the function that comes last.

    What it sees: The size of the targets (or of the first errors, where the loss is written out by hand), and what
        comes last: a sigmoid, tanh or the like, as a module or as a function, whose range ends far below the targets,
        or a ReLU while the targets are below zero.
    Why it is bad: No training reaches such targets: the function saturates, and its gradient vanishes.
    When it is wrong: Where the targets are not seen, their size is taken from the first errors. Once the loss has
        fallen clearly, nothing is said.
    References: LeCun et al., "Efficient BackProp", 1998, section 4.5.
    """

    code, variant = "DAT003", "unreachable-targets"
    stage, is_standing = Stage.DATA, True
    _targets = Shared(TargetScale)
    meaning = "The outputs end far below the targets, however long the training takes"
    remedies = (
        SCALE_THE_TARGETS,
        Remedy(
            "drop-the-output-function",
            "Leave the last layer without an activation, so that predictions can take any value.",
            "prediction = head(hidden)  # not torch.sigmoid(head(hidden))",
            "Predictions are no longer bounded.",
            when_not="The targets are probabilities: then check how they are made.",
        ),
    )

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._targets.is_told or self._targets.bounded == NONE:
            return None
        if self._targets.harm:
            return self.hold(True, lambda: self._describe(view))
        return self.end() if self._targets.is_over else self.stay()

    def _describe(self, view: FrameView) -> Judgement:
        targets = self._targets
        path = view.layout.path(targets.bounded)
        summary = f"{targets.sentence()}: they lie beyond the range of {path}."
        layers = output_layers(view)
        return Judgement(Severity.SEVERE, layers, targets.first_step, 0.85, summary, targets.evidence())
