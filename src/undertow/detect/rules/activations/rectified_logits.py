"""ACT001: logits that come out of a ReLU."""

import math

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.output_layer import output_layers
from undertow.detect.features.remedies import FREE_THE_LAST_LAYER, REVIVE_THE_UNITS
from undertow.detect.features.silent_units import SilentUnits
from undertow.schema import Evidence, Severity


class RectifiedLogits(Condition):
    """The logits of a cross-entropy, or of a binary one, are the output of a ReLU.

    What it sees: The graph of the loss: the operation right before it. However many logits are zero does not matter.
    Why it is bad: A logit that cannot be negative can call no class unlikely, and where it is zero it gets no gradient.
    When it is wrong: It is read in the graph, so the ReLU is there. Where units are reported as dead already, this is
        not said.
    References: PyTorch documentation, `torch.nn.CrossEntropyLoss`: it takes unnormalised logits.
    """

    code, variant, formerly = "ACT001", "rectified-logits", "rectified"
    stage = Stage.SIGNAL
    _units = Shared(SilentUnits)
    meaning = "No class can be called unlikely, and logits that are zero do not learn"
    remedies = (FREE_THE_LAST_LAYER, REVIVE_THE_UNITS)
    patience = Limit(2, "steps in a row at which the graph shows it: a second loss may have its turn")

    def __init__(self) -> None:
        self._seen = Consecutive()

    def observe(self, view: FrameView) -> Judgement | None:
        flag = view.scalar("loss_input_is_rectified")
        if math.isnan(flag):
            return None
        if flag != 1:
            self._seen.end()
            return self.end()
        is_told = bool(self._units.open_variants - {self.variant})
        if self._seen.hold(view.step) < self.patience or (is_told and not self.is_open):
            return None
        return self.hold(None, lambda: self._describe(view))

    def _describe(self, view: FrameView) -> Judgement:
        layers = output_layers(view)
        path = view.layout.path(layers[0]) if layers else None
        how = "the logits that the loss function is given come out of a ReLU"
        evidence = (Evidence("loss_input_is_rectified", path, 1.0, 0.0, how),)
        summary = "The logits are the output of a ReLU: no class can be called unlikely, and zeros get no gradient."
        return Judgement(Severity.MODERATE, layers, self._seen.since, 0.9, summary, evidence)
