"""Targets that the last function of the model cannot put out, or that are none the loss is made for."""

from __future__ import annotations

import math

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import Consecutive
from undertow.detect.engine.view import FrameView
from undertow.detect.features.output_layer import output_layers
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

_BINARY = (LossKind.BINARY_OF_LOGITS, LossKind.BINARY_OF_PROBABILITIES)


class OutOfReach:
    """A ReLU before targets below zero, a sigmoid before targets above one: read in the graph, so it is certain."""

    def __init__(self) -> None:
        self._condition = Condition("reach")
        self._looks = Consecutive()

    @property
    def resting(self) -> bool:
        return not self._condition.is_open

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        share = view.scalar("targets_beyond_reach")
        if math.isnan(share):
            return self._condition.stay()
        if share < limit.BEYOND_REACH or (view.loss is not None and view.loss.actors > 1):
            self._looks.end()
            return self._condition.end()
        if self._looks.hold(view.step) < limit.BEYOND_REACH_LOOKS:
            return ()
        return self._condition.hold(None, lambda: self._verdict(view, share))

    def _verdict(self, view: FrameView, share: float) -> Verdict:
        if view.scalar("loss_kind") in _BINARY:
            how = "mean square of what the targets lie outside of 0 to 1, over their variance"
            summary = (
                "The targets of the binary cross-entropy are not between 0 and 1: it takes them for probabilities, and "
                "with others it has no floor. Give it 0 and 1, not -1 and 1 or 0 and 255."
            )
            evidence = Evidence("targets_beyond_reach", None, share, 0.0, how)
            return Verdict("reach", True, Severity.SEVERE, (), self._looks.since, 0.95, summary, (evidence,))
        how = "of the targets' variance lies outside of what the last function can put out"
        evidence = Evidence("targets_beyond_reach", None, share, 0.0, how)
        summary = (
            "The model ends in a function that cannot reach the targets: they lie outside of its range, and "
            f"{min(share, 1.0):.0%} of their variance can never be learnt. Drop that function, or scale the targets."
        )
        layers = output_layers(view)
        return Verdict("reach", True, Severity.SEVERE, layers, self._looks.since, 0.95, summary, (evidence,))
