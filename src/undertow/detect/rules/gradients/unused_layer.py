"""GRD003: layers that never run."""

from undertow.detect.engine import LayerIndex
from undertow.detect.features.missing_gradients import Mask, WithoutGradient
from undertow.detect.features.wording import count_of, name_layers


class UnusedLayer(WithoutGradient):
    """Parameters in the optimizer belong to modules that never run in a pass that leads to a loss.

    What it sees: Parameters whose gradient is None at the steps of their optimizer, and whose module was seen not to
        run, or only in a pass of its own without gradients.
    Why it is bad: It is harmless: the parameters take memory and no part in the training. It is a remark, never an
        alarm.
    When it is wrong: Modules that run only late in the training, such as a head for a second stage.
    References: PyTorch documentation, "Autograd mechanics".
    """

    variant, formerly = "unused-layer", "unused"
    meaning = "These layers take no part in the training"

    def members(self) -> Mask:
        return self._gradients.unused

    def sentence(self, layout: LayerIndex, layers: tuple[int, ...]) -> str:
        return (
            f"{count_of(len(layers), 'layer')} held by the optimizer never ran in a forward pass that led to a loss: "
            f"{name_layers(layout, layers)}."
        )
