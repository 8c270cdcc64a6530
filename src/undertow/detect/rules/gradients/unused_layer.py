"""GRD003: layers that never run."""

from __future__ import annotations

import numpy as np

from undertow.detect.engine.condition import Condition, Judgement
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.stage import Stage
from undertow.detect.engine.view import FrameView
from undertow.detect.features.missing_gradients import MissingGradients
from undertow.detect.features.remedies import DROP_UNUSED_PARAMETERS
from undertow.detect.features.wording import count_of, name_layers
from undertow.schema.severity import Severity


class UnusedLayer(Condition):
    """Parameters in the optimizer belong to modules that never run in a pass that leads to a loss.

    What it sees
    ------------
    Parameters whose gradient is None at the steps of their optimizer, and whose module was seen not to run, or only
    in a pass of its own without gradients.

    Why it is bad
    -------------
    It is harmless: the parameters take memory and no part in the training. It is a remark, never an alarm.

    When it is wrong
    ----------------
    Modules that run only late in the training, such as a head for a second stage.

    References
    ----------
    PyTorch documentation, "Autograd mechanics".
    """

    code, variant, formerly = "GRD003", "unused-layer", "unused"
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    tracker = MissingGradients
    meaning = "These layers take no part in the training"
    remedies = (DROP_UNUSED_PARAMETERS,)

    def __init__(self, tracker: MissingGradients) -> None:
        super().__init__()
        self._gradients = tracker

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._gradients.is_informed:
            return None
        members = self._gradients.unused
        return self.hold(members.tobytes(), lambda: self._describe(view.layout)) if members.any() else self.end()

    def _describe(self, layout: LayerIndex) -> Judgement:
        layers = tuple(layout.in_order(np.flatnonzero(self._gradients.unused)))
        summary = (
            f"{count_of(len(layers), 'layer')} held by the optimizer never ran in a forward pass that led to a loss: "
            f"{name_layers(layout, layers)}."
        )
        evidence = self._gradients.evidence(layout, layers)
        return Judgement(Severity.INFO, layers, self._gradients.since(layers), 0.9, summary, evidence)
