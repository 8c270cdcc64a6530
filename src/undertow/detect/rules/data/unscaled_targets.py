"""DAT003: regression targets that are not scaled."""

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.module_structure import NONE
from undertow.detect.features.target_scale import SCALE_THE_TARGETS, TargetScale
from undertow.schema import Severity


class UnscaledTargets(Condition):
    """Regression targets are so large that the model cannot reach them, or is torn apart trying.

    What it sees: The size of the targets against that of the first predictions, for losses that compare them element by
        element; where such a loss is written out by hand, the size of its first errors against the outputs of the last
        layer. Targets more than thirty times as large are reported once training suffers: when after forty steps nearly
        all of the loss is still there (most of it, where they are a thousand times as large), when the loss has grown
        tenfold or is no longer finite within that time, or when clipping takes nearly all of the gradient away.
    Why it is bad: A model starts with outputs of about one. Under Adam, whose steps have a fixed length, outputs of a
        thousand take thousands of steps to reach; under plain gradient descent the gradient is as large as the error,
        and the first steps throw the weights away.
    When it is wrong: Large targets alone are no fault: many models learn them well, and then nothing is said.
    References: LeCun et al., "Efficient BackProp", 1998, section 4.5.
    """

    code, variant, formerly = "DAT003", "unscaled-targets", "targets"
    stage, is_standing = Stage.DATA, True
    _targets = Shared(TargetScale)
    meaning = "Errors as large as the targets make gradients as large, whatever the model does"
    remedies = (SCALE_THE_TARGETS,)

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._targets.is_told or self._targets.bounded != NONE:
            return None
        if self._targets.harm:
            return self.hold(True, self._describe)
        return self.end() if self._targets.is_over else self.stay()

    def _describe(self) -> Judgement:
        targets = self._targets
        summary = f"{targets.sentence()}: they are not scaled, and {targets.harm}."
        return Judgement(Severity.SEVERE, (), targets.first_step, 0.85, summary, targets.evidence())
