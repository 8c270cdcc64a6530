"""NUM001: a loss scaler skips steps."""

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, where_scalar
from undertow.detect.features.wording import count_of, known
from undertow.schema import Evidence, Severity


class ScalerSkipsSteps(Condition):
    """A loss scaler skipped steps because gradients overflowed.

    What it sees: Steps in a row that the loss scaler of mixed precision skipped, and its scale.
    Why it is bad: It is not bad: a scaler starts with a large scale and halves it on every overflow. This is a remark,
        never an alarm. A scaler that no longer finds a scale is NUM005.
    When it is wrong: The count is exact.
    References: PyTorch documentation, "Automatic Mixed Precision examples".
    """

    code, variant, formerly = "NUM001", "scaler-skips-steps", "scaler"
    places = ("scaler",)
    stage, is_exact = Stage.NONFINITE, True
    meaning = "The weights stay as they are at such steps, and the scaler lowers its scale"
    wakes_on = where_scalar("step_skipped", lambda skipped: skipped == 1)

    usual_skips = Limit.arithmetic(10, "steps in a row: from 2**16 a scaler halves as often in a healthy start")

    def __init__(self) -> None:
        self._skips = Consecutive()

    def observe(self, view: FrameView) -> Judgement | None:
        if not view.skipped:
            self._skips.end()
            return self.end()
        return self.hold(self._skips.hold(view.step), lambda: self._describe(view))

    def _describe(self, view: FrameView) -> Judgement:
        skips = self._skips.count
        summary = (
            f"The loss scaler skipped {count_of(skips, 'step')} in a row because gradients overflowed; "
            f"up to {self.usual_skips:.0f} are usual while it finds its scale."
        )
        evidence = (
            Evidence("step_skipped", None, float(skips), float(self.usual_skips),
                     "steps skipped in a row, and the most that a healthy start needs"),
            Evidence("loss_scale", None, known(view.scalar("loss_scale")), None, "scale at the latest skipped step"),
        )  # fmt: skip
        return Judgement(Severity.INFO, (), self._skips.since, 1.0, summary, evidence)
