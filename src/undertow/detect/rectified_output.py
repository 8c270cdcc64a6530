"""Part of ACT001: logits that come out of a ReLU, and can say no more than "at least zero" of a class."""

from __future__ import annotations

import math

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import Consecutive
from undertow.detect.engine.view import FrameView
from undertow.detect.features.output_layer import output_layers
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class RectifiedOutput:
    """Read in the graph of the loss, so it is certain."""

    def __init__(self) -> None:
        self._condition = Condition("rectified")
        self._looks = Consecutive()

    def observe(self, view: FrameView, is_told: bool) -> tuple[Verdict, ...]:
        """`is_told`: units that are never active have been reported; where the ReLU is the last one, that says it."""
        flag = view.scalar("loss_input_is_rectified")
        if math.isnan(flag):
            return ()
        if flag != 1:
            self._looks.end()
            return self._condition.end()
        if self._looks.hold(view.step) < limit.RECTIFIED_LOOKS or (is_told and not self._condition.is_open):
            return ()
        return self._condition.hold(None, lambda: self._verdict(view))

    def _verdict(self, view: FrameView) -> Verdict:
        layers = output_layers(view)
        path = view.layout.path(layers[0]) if layers else None
        how = "the logits that the loss function is given come out of a ReLU"
        evidence = (Evidence("loss_input_is_rectified", path, 1.0, 0.0, how),)
        summary = (
            "The logits are the output of a ReLU: no class can be called unlikely, and where a logit is zero it gets "
            "no gradient. Leave the last ReLU out."
        )
        return Verdict("rectified", True, Severity.MODERATE, layers, self._looks.since, 0.9, summary, evidence)
