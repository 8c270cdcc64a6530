"""GRD004: a bias has no influence."""

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, Shared, Stage
from undertow.detect.features.wording import name_layers
from undertow.detect.features.zero_gradients import ZeroGradients
from undertow.schema import Severity


class BiasWithoutInfluence(Condition):
    """The gradient of a bias is exactly zero although the weight of the same module learns.

    What it sees: Biases whose gradient is zero for as long as that of a weight would have to be, while the rest of the
        module has one.
    Why it is bad: It is harmless: by symmetry some biases change nothing, as the key bias of attention and a bias
        before a normalisation. This is a remark, never an alarm.
    When it is wrong: The zeros are exact.
    References: PyTorch documentation, "Autograd mechanics".
    """

    code, variant, formerly = "GRD004", "bias-without-influence", "bias"
    stage, is_exact = Stage.BLOCKED, True
    _gradients = Shared(ZeroGradients)
    meaning = "The bias keeps its initial value; nothing else is affected"

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._gradients.is_informed:
            return None
        members = self._gradients.biases
        return self.hold(members, lambda: self._describe(view.layout)) if members else self.end()

    def _describe(self, layout: LayerIndex) -> Judgement:
        layers = layout.in_order(self._gradients.biases)
        summary = f"The gradient of {name_layers(layout, layers)} is exactly zero; the bias has no influence."
        return Judgement(Severity.INFO, tuple(layers), int(self._gradients.streak.since[layers].min()), 0.9, summary)
