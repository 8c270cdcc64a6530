"""GRD003: unused or cut off, nobody can tell."""

from undertow.detect.engine import LayerIndex
from undertow.detect.features.missing_gradients import Mask, WithoutGradient
from undertow.detect.features.wording import count_of, name_layers
from undertow.schema import Severity


class GradientUnaccountedFor(WithoutGradient):
    """Parameters in the optimizer get no gradient, and whether they run is not known.

    What it sees: Parameters whose gradient is None at the steps of their optimizer, in a model whose modules cannot be
        seen to run (a compiled one).
    Why it is bad: If they are cut off from the loss they keep their initial values; if they are unused it is harmless.
    When it is wrong: It cannot tell the two apart, so it is a hint, never an alarm.
    References: PyTorch documentation, "Autograd mechanics".
    """

    variant, formerly = "gradient-unaccounted-for", "unknown"
    meaning = "These layers keep their initial values while the rest learns around them, so the loss still looks fine"
    severity, confidence = Severity.MILD, 0.5

    def members(self) -> Mask:
        return self._gradients.unknown

    def sentence(self, layout: LayerIndex, layers: tuple[int, ...]) -> str:
        return (
            f"{count_of(len(layers), 'layer')} held by the optimizer got no gradient: {name_layers(layout, layers)}; "
            "they may be unused or cut off."
        )
