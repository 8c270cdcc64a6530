"""What the loss function is given, beside what it takes: logits, probabilities or log-probabilities."""

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Shared, Stage, Tracker, having
from undertow.detect.features.output_layer import output_layers
from undertow.schema import Evidence, LossKind, Severity


class LossInput(Tracker):
    """`mistake` is the variant that this frame shows: empty where the input is right, None where it is not known."""

    wakes_on = having("loss_input_is_probability", "loss_input_is_logit")

    def __init__(self) -> None:
        self.mistake: str | None = None
        self.streak = Consecutive()

    def follow(self, view: FrameView) -> None:
        flags = view.scalar("loss_input_is_probability"), view.scalar("loss_input_is_logit")
        self.mistake = None if all(flag != flag for flag in flags) else ""
        if 1 in flags:
            of_classes = view.scalar("loss_kind") == LossKind.CROSS_ENTROPY
            reverse = "softmax-over-wrong-dimension" if of_classes else "logits-for-probabilities"
            self.mistake = "probabilities-for-logits" if flags[0] == 1 else reverse
            self.streak.hold(view.step)
        elif self.mistake == "":
            self.streak.end()


class WrongLossInput(Condition):
    """The base of the three mistakes, of which a loss makes one at a time."""

    code = "LSS001"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    _input = Shared(LossInput)
    meaning = "The loss cannot fall as far as it should, and its gradients are far too flat"
    patience = Limit(2, "measured steps: one batch of one row could sum to 1 by accident")

    def observe(self, view: FrameView) -> Judgement | None:
        if self._input.mistake is None:
            return self.stay()
        if self._input.mistake != self.variant:
            return self.end()
        return self.hold(None, lambda: self._describe(view)) if self._input.streak.count >= self.patience else None

    def _describe(self, view: FrameView) -> Judgement:
        layers = output_layers(view)
        quantity, summary, how = self.describe(view.scalar("loss_kind"))
        evidence = Evidence(quantity, view.layout.path(layers[0]) if layers else None, 1.0, 0.0, how)
        return Judgement(Severity.SEVERE, layers, self._input.streak.since, 0.98, summary, (evidence,))

    def describe(self, kind: float) -> tuple[str, str, str]:
        """The quantity that shows it, the summary, and how it was seen."""
        raise NotImplementedError
