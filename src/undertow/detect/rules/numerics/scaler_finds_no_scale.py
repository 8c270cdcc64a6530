"""NUM005: a loss scaler skips every step."""

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, where_scalar
from undertow.detect.features.remedies import SMALLER_LOSS_SCALE
from undertow.detect.features.wording import count_of
from undertow.schema import Evidence, Severity


class ScalerFindsNoScale(Condition):
    """A loss scaler skips one step after the other: gradients overflow at any scale.

    What it sees: Steps in a row that the loss scaler of mixed precision skipped: twenty, or five with a scale below
        one.
    Why it is bad: A skipped step changes no weight: nothing is learnt. Where no scale makes the gradients finite, the
        scale is not the cause; something in the model or the data is infinite.
    When it is wrong: A scaler that skips a few steps while it finds its scale is healthy (NUM001 notes it).
    References: PyTorch documentation, "Automatic mixed precision", section "Gradient scaling".
    """

    code, variant, formerly = "NUM005", "scaler-finds-no-scale", "skipping"
    places = ("scaler",)
    stage, is_standing = Stage.OPTIMIZER, True
    meaning = "Every step is skipped, so the weights stay as they are"
    remedies = (SMALLER_LOSS_SCALE,)
    wakes_on = where_scalar("step_skipped", lambda skipped: skipped == 1)

    most_skips = Limit.arithmetic(20, "steps in a row: from 2**16 a scaler needs at most 16 to come down to 1")
    most_skips_below_one = Limit.arithmetic(5, "steps in a row with a scale below 1, where scaling makes no sense")

    def __init__(self) -> None:
        self._skips = Consecutive()

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._skips.count

    def observe(self, view: FrameView) -> Judgement | None:
        if not view.skipped:
            if "step_skipped" not in view.frame.scalars:
                return None
            self._skips.end()
            return self.end()
        skips, scale = self._skips.hold(view.step), view.scalar("loss_scale")
        if skips < self.most_skips and not (skips >= self.most_skips_below_one and scale < 1.0):
            return None
        return self.hold(True, lambda: self._describe(scale))

    def _describe(self, scale: float) -> Judgement:
        how = f"after {count_of(self._skips.count, 'step')} skipped in a row: no scale makes these gradients finite"
        summary = "The loss scaler skips every step: gradients are infinite or NaN at any scale, and nothing is learnt."
        evidence = Evidence("loss_scale", None, scale, None, how)
        return Judgement(Severity.SEVERE, (), self._skips.since, 0.95, summary, (evidence,))
