"""WGT003: all weights begin too small."""

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


class WeightsTooSmall(BadStart):
    """The weights begin so small that the signal dies out on its way through the network.

    What it sees: At the first measured step, the scale of each weight matrix (its RMS times the root of its fan-in: 0.6
        for PyTorch's default) and what differs between samples in the output of each layer. Most scales are small and
        the signal falls by more than two decades; or every scale is below a hundredth, whatever normalises between
        them. Scales somewhat below PyTorch's default count where, besides, nothing is learned in sixty steps.
    Why it is bad: Signals and gradients shrink by the same factor in every layer. Nothing reaches the first layers, and
        the loss does not move.
    When it is wrong: Normalisations and residual paths carry the signal past small layers; the output then stays large,
        and nothing is said. Frozen or tied matrices and those that start at zero on purpose do not count.
    References: He et al., "Delving Deep into Rectifiers", 2015 (arXiv 1502.01852).
        Mishkin and Matas, "All you need is a good init", 2016 (arXiv 1511.06422).
    """

    variant = "weights-too-small"
    meaning = "The signal fades from layer to layer, and so do the gradients"
    remedies = (INITIALISE_FOR_THE_ACTIVATION, REINITIALISE_THE_LAYER, ADD_NORMALISATION_OR_SHORTCUTS)

    small = Limit(0.3, 'RMS × √fan-in; the default of PyTorch is 0.58, "std 0.02" gives 0.1 to 0.6')
    somewhat_small = Limit(0.5, "RMS × √fan-in, just below PyTorch's default: counts only where nothing is learned")
    tiny = Limit(0.01, "RMS × √fan-in of every matrix: recipes start some so small, never all")
    tiny_least = Limit(3, "matrices at least, to speak of all of them")

    @classmethod
    def remedies_for(cls, finding: Finding) -> tuple[Remedy, ...]:
        if finding.layers:
            return REINITIALISE_THE_LAYER, INITIALISE_FOR_THE_ACTIVATION
        return INITIALISE_FOR_THE_ACTIVATION, ADD_NORMALISATION_OR_SHORTCUTS

    def judge_start(self, view: FrameView) -> Judgement | None:
        start = self._start
        if not start.is_path:
            return None
        path, small = start.path, start.path < self.small
        is_small = np.exp(np.log(path).mean()) < self.small and np.mean(small) > self.most
        if is_small and self._fades():
            layers = start.unlike_others(small)
            names = name_layers(view.layout, layers) if layers else "all layers"
            summary = f"The signal dies out: the weights of {names} begin too small."
            return Judgement(Severity.SEVERE, layers, view.step, 0.93, summary, start.evidence(0.58))
        if len(path) >= self.tiny_least and path.max() < self.tiny:
            summary = "The signal is next to nothing behind every layer: all weights begin far too small."
            return Judgement(Severity.SEVERE, (), view.step, 0.93, summary, start.evidence(0.58))
        return None

    def doubt(self, view: FrameView) -> Judgement | None:
        start = self._start
        if not start.is_path or not self._fades() or np.mean(start.path < self.somewhat_small) <= self.most:
            return None
        summary = "The signal dies out: the weights of all layers begin too small, and the loss does not fall."
        return Judgement(Severity.MODERATE, (), view.step, 0.8, summary, start.evidence(0.58))

    def _fades(self) -> bool:
        return self._start.decades < -self.least_decades and not self._start.is_normalised
