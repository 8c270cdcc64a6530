"""GRD003: unused or cut off, nobody can tell."""

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


class GradientUnaccountedFor(Condition):
    """Parameters in the optimizer get no gradient, and whether they run is not known.

    What it sees
    ------------
    Parameters whose gradient is None at the steps of their optimizer, in a model whose modules cannot be seen to run
    (a compiled one).

    Why it is bad
    -------------
    If they are cut off from the loss they keep their initial values; if they are unused it is harmless.

    When it is wrong
    ----------------
    It cannot tell the two apart, so it is a hint, never an alarm.

    References
    ----------
    PyTorch documentation, "Autograd mechanics".
    """

    code, variant, formerly = "GRD003", "gradient-unaccounted-for", "unknown"
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    tracker = MissingGradients
    meaning = "These layers keep their initial values while the rest learns around them, so the loss still looks fine"
    remedies = (DROP_UNUSED_PARAMETERS,)

    def __init__(self, tracker: MissingGradients) -> None:
        super().__init__()
        self._gradients = tracker

    def observe(self, view: FrameView) -> Judgement | None:
        if not self._gradients.is_informed:
            return None
        members = self._gradients.unknown
        return self.hold(members.tobytes(), lambda: self._describe(view.layout)) if members.any() else self.end()

    def _describe(self, layout: LayerIndex) -> Judgement:
        layers = tuple(layout.in_order(np.flatnonzero(self._gradients.unknown)))
        summary = (
            f"{count_of(len(layers), 'layer')} held by the optimizer got no gradient: {name_layers(layout, layers)}; "
            "they may be unused or cut off."
        )
        evidence = self._gradients.evidence(layout, layers)
        return Judgement(Severity.MILD, layers, self._gradients.since(layers), 0.5, summary, evidence)
