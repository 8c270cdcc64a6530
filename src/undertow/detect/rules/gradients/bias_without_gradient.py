"""GRD003: a bias that the loss does not depend on."""

from undertow.detect.engine import LayerIndex
from undertow.detect.features.missing_gradients import Mask, WithoutGradient
from undertow.detect.features.wording import name_layers


class BiasWithoutGradient(WithoutGradient):
    """A bias gets no gradient although the weight of the same module does.

    What it sees: Biases whose gradient is None beside a weight with a gradient: the loss does not depend on the bias.
    Why it is bad: It is harmless where only the slope of the output counts, as for an energy whose gradient is the
        score: a remark.
    When it is wrong: A bias that a custom module forgets to add looks the same.
    References: PyTorch documentation, "Autograd mechanics".
    """

    variant, formerly = "bias-without-gradient", "bias"
    meaning = "The bias keeps its initial value; nothing else is affected"

    def members(self) -> Mask:
        return self._gradients.bias

    def sentence(self, layout: LayerIndex, layers: tuple[int, ...]) -> str:
        return (
            f"No gradient reaches {name_layers(layout, layers)}, though the weight beside it has one: "
            "the loss does not depend on it."
        )
