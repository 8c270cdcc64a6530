"""GRD003: a bias that the loss does not depend on."""

from __future__ import annotations

import numpy as np

from undertow.detect.engine.condition import Condition, Judgement
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.stage import Stage
from undertow.detect.engine.view import FrameView
from undertow.detect.features.missing_gradients import MissingGradients
from undertow.detect.features.remedies import DROP_UNUSED_PARAMETERS
from undertow.detect.features.wording import name_layers
from undertow.schema.severity import Severity


class BiasWithoutGradient(Condition):
    """A bias gets no gradient although the weight of the same module does.

    What it sees
    ------------
    Biases whose gradient is None beside a weight with a gradient: the loss does not depend on the bias.

    Why it is bad
    -------------
    It is harmless where only the slope of the output counts, as for an energy whose gradient is the score: a remark.

    When it is wrong
    ----------------
    A bias that a custom module forgets to add looks the same.

    References
    ----------
    PyTorch documentation, "Autograd mechanics".
    """

    code, variant, formerly = "GRD003", "bias-without-gradient", "bias"
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    tracker = MissingGradients
    meaning = "The bias keeps its initial value; nothing else is affected"
    remedies = (DROP_UNUSED_PARAMETERS,)

    def __init__(self, tracker: MissingGradients) -> None:
        super().__init__()
        self._gradients = tracker

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._gradients.is_informed:
            return None
        members = self._gradients.bias
        return self.hold(members.tobytes(), lambda: self._describe(view.layout)) if members.any() else self.end()

    def _describe(self, layout: LayerIndex) -> Judgement:
        layers = tuple(layout.in_order(np.flatnonzero(self._gradients.bias)))
        summary = (
            f"No gradient reaches {name_layers(layout, layers)}, though the weight beside it has one: "
            "the loss does not depend on it."
        )
        evidence = self._gradients.evidence(layout, layers)
        return Judgement(Severity.INFO, layers, self._gradients.since(layers), 0.9, summary, evidence)
