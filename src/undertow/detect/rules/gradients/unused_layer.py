"""GRD003: parameters in the optimizer without a gradient, where that is harmless or nobody can tell."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Shared, Stage
from undertow.detect.features.missing_gradients import MissingGradients
from undertow.detect.features.remedies import DROP_UNUSED_PARAMETERS
from undertow.detect.features.wording import count_of, name_layers
from undertow.schema import Severity


class UnusedLayer(Condition):
    """Parameters in the optimizer take no part in the training, or nobody can tell whether they do.

    What it sees: Parameters whose gradient is None at the steps of their optimizer, and whose module was seen not to
        run, or only in a pass of its own without gradients; or where modules cannot be seen to run, as in a compiled
        model. Or biases beside a weight of the same module that has a gradient.
    Why it is bad: It is harmless: such parameters take memory and no part in the training. It is a remark, never an
        alarm. If they are cut off from the loss instead, they keep their initial values.
    When it is wrong: Modules that run only late in the training, such as a head for a second stage. A bias that a
        custom module forgets to add looks like one that the loss does not depend on, as that of an energy whose
        gradient is the score.
    References: PyTorch documentation, "Autograd mechanics".
    """

    code, variant = "GRD003", "unused-layer"
    places = ("definition",)
    formerly = "unused bias unknown bias-without-gradient gradient-unaccounted-for"
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    _gradients = Shared(MissingGradients)
    meaning = "These layers take no part in the training"
    remedies = (DROP_UNUSED_PARAMETERS,)

    def observe(self, view: FrameView) -> Judgement | None:
        known = self._gradients
        if not known.is_informed:
            return None
        return self.hold_of(view, np.flatnonzero(known.unused | known.bias | known.unknown), self._describe)

    def _describe(self, view: FrameView, layers: tuple[int, ...]) -> Judgement:
        known, chosen, named = self._gradients, list(layers), name_layers(view.layout, layers)
        count, severity, confidence = count_of(len(layers), "layer"), Severity.INFO, 0.9
        if known.unused[chosen].any():
            summary = f"{count} held by the optimizer never ran in a forward pass that led to a loss: {named}."
        elif known.bias[chosen].any():
            summary = f"No gradient reaches {named}, though the weight beside it has one: the loss does not need it."
        else:
            severity, confidence = Severity.MILD, 0.5
            summary = f"{count} held by the optimizer got no gradient: {named}; they may be unused or cut off."
        return Judgement(
            severity, layers, known.since(layers), confidence, summary, known.evidence(view.layout, layers)
        )
