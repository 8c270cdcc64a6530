"""WGT003: a table or head begins so large that the first answers are certain."""

import math

from undertow.detect.engine import FrameView, Judgement, Limit
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.initial_scales import BadStart, first_loss_over_guess
from undertow.detect.features.remedies import INITIALISE_FOR_THE_ACTIVATION, REINITIALISE_THE_LAYER
from undertow.schema import Evidence, Severity


class OverconfidentStart(BadStart):
    """One embedding or output layer begins so large that the model is certain before it has learned anything.

    What it sees: At the first measured step, predictions that are confident and mostly wrong, a first loss ten times
        chance level, and a matrix (a table, a head, or both tied) whose weights have an RMS above two.
    Why it is bad: Logits of that size saturate the softmax: gradients are as large as they can be, and the first steps
        only take the certainty back.
    When it is wrong: A pretrained model is confident and right; it is not judged. PyTorch's new tables have an RMS of
        one and train well, as heads, too.
    References: Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017 (arXiv 1608.05859).
    """

    variant = "overconfident-start"
    places = ("initialisation", "parameter")
    meaning = "The first steps only undo predictions that are certain and wrong"
    remedies = (REINITIALISE_THE_LAYER, INITIALISE_FOR_THE_ACTIVATION)

    loss_over_guess = Limit(10, "times the loss of a guess, at the first step")
    large_rms = Limit(2, "RMS of a matrix: PyTorch's new tables have 1, and train well")

    def judge_start(self, view: FrameView) -> Judgement | None:
        over = first_loss_over_guess(view)
        if not (over > self.loss_over_guess and self.is_sure(view)):
            return None
        layout, norm = view.layout, self._start.norm
        sizes = {
            layer.id: float(norm[layer.id]) / math.sqrt(layer.parameter_count)
            for layer in layout.layers.parameters
            if layer.trainable and len(layer.shape) == 2 and norm[layer.id] > 0
        }
        largest = max(sizes, key=lambda i: sizes[i], default=None)
        if largest is None or sizes[largest] < self.large_rms:
            return None
        path = layout.path(largest)
        evidence = (
            Evidence("weight_rms", path, sizes[largest], 1.0, "RMS at the start, and that of a usual embedding"),
            Evidence("loss", None, view.loss.first if view.loss else None, chance_level(view),
                     "first loss, and chance level"),
        )  # fmt: skip
        summary = (
            f"{path} starts far too large: the untrained model is overconfident, and its first loss is {over:,.0f}× "
            "chance level."
        )
        return Judgement(Severity.SEVERE, (largest,), view.step, 0.9, summary, evidence)
