"""WGT003: all weights, or several, begin too large."""

import numpy as np

from undertow.detect.engine import FrameView, Judgement, Limit
from undertow.detect.features.initial_scales import BadStart
from undertow.detect.features.remedies import (
    ADD_NORMALISATION_OR_SHORTCUTS,
    INITIALISE_FOR_THE_ACTIVATION,
    REINITIALISE_THE_LAYER,
)
from undertow.detect.features.wording import name_layers
from undertow.schema import Finding, Remedy, Severity


class WeightsTooLarge(BadStart):
    """The weights begin so large that the signal blows up on its way through the network.

    What it sees: At the first measured step, the scale of each weight matrix (its RMS times the root of its fan-in: 1
        to 1.4 for Xavier and He) and what differs between samples in the output of each layer. Most scales are large,
        and the signal grows by more than two decades or the model is sure of wrong answers. Or some are, the signal
        grows by three decades, and the first loss is a hundred times that of a guess (or the first errors a hundred
        times the targets).
    Why it is bad: Signals and gradients grow by the same factor in every layer. Activations saturate or die, and the
        loss overflows.
    When it is wrong: A normalisation brings the signal back to its scale, so only the answers tell there. A model that
        was trained before is sure and right; it does not count. Nor do frozen and tied matrices.
    References: He et al., "Delving Deep into Rectifiers", 2015 (arXiv 1502.01852).
        Mishkin and Matas, "All you need is a good init", 2016 (arXiv 1511.06422).
    """

    variant, formerly = "weights-too-large", "start"
    meaning = "The signal grows from layer to layer, and so do the gradients"
    remedies = (INITIALISE_FOR_THE_ACTIVATION, REINITIALISE_THE_LAYER, ADD_NORMALISATION_OR_SHORTCUTS)

    large = Limit(2.5, "RMS × √fan-in; He's initialisation, the largest usual one, gives 1.41")

    @classmethod
    def remedies_for(cls, finding: Finding) -> tuple[Remedy, ...]:
        if finding.layers:
            return REINITIALISE_THE_LAYER, INITIALISE_FOR_THE_ACTIVATION
        return INITIALISE_FOR_THE_ACTIVATION, ADD_NORMALISATION_OR_SHORTCUTS

    def judge_start(self, view: FrameView) -> Judgement | None:
        start = self._start
        if not start.is_path:
            return None
        path, unusual = start.path, start.path > self.large
        grows = 0.0 if start.is_normalised else start.decades
        is_large = np.exp(np.log(path).mean()) > self.large and np.mean(unusual) > self.most
        if not (is_large and (grows > self.least_decades or self.is_sure(view))):
            unusual = path > self.large_for_one
            if not (grows > self.least_decades_of_usual and unusual.any() and self.is_hopeless(view)):
                return None
        layers = start.unlike_others(unusual)
        names = name_layers(view.layout, layers) if layers else "all layers"
        summary = f"The signal blows up: the weights of {names} begin too large."
        return Judgement(Severity.SEVERE, layers, view.step, 0.93, summary, start.evidence(1.41))
