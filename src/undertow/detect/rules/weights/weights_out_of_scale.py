"""WGT003: all weights, or several, begin too large or too small."""

from dataclasses import replace

import numpy as np

from undertow.detect.engine import FrameView, Judgement, Limit
from undertow.detect.features.initial_scales import BadStart, Mask
from undertow.detect.features.remedies import (
    ADD_NORMALISATION_OR_SHORTCUTS,
    INITIALISE_FOR_THE_ACTIVATION,
    REINITIALISE_THE_LAYER,
)
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Finding, Remedy, Severity


class WeightsOutOfScale(BadStart):
    """The weights begin so large or so small that the signal blows up or dies out on its way through the network.

    What it sees: At the first measured step, the scale of each weight matrix (its RMS times the root of its fan-in: 0.6
        for PyTorch's default, 1 to 1.4 for Xavier and He) and what differs between samples in the output of each layer.
        Most scales are small or large, and the signal falls or grows by two decades or the model is confident in wrong
        predictions. Or some are large, it grows by three, and the first loss is a hundred times chance level; or every
        scale is below a hundredth; or most are below PyTorch's and nothing is learned in sixty steps.
    Why it is bad: Signals and gradients change by the same factor in every layer. Activations saturate or die and the
        loss overflows; or nothing reaches the first layers, and the loss does not move.
    When it is wrong: Normalisations and residual paths carry the signal past such layers; there only predictions and
        outputs can tell. A pretrained model is confident and right; it is not judged. Nor are frozen and tied matrices,
        and those that start at zero on purpose.
    References: He et al., "Delving Deep into Rectifiers", 2015 (arXiv 1502.01852).
        Mishkin and Matas, "All you need is a good init", 2016 (arXiv 1511.06422).
    """

    variant, formerly = "weights-out-of-scale", "start weights-too-large weights-too-small"
    places = ("initialisation", "parameter")
    meaning = "The signal grows or fades from layer to layer, and so do the gradients"
    remedies = (INITIALISE_FOR_THE_ACTIVATION, REINITIALISE_THE_LAYER, ADD_NORMALISATION_OR_SHORTCUTS)

    large = Limit(2.5, "RMS × √fan-in; He's initialisation, the largest usual one, gives 1.41")
    small = Limit(0.3, 'RMS × √fan-in; the default of PyTorch is 0.58, "std 0.02" gives 0.1 to 0.6')
    somewhat_small = Limit(0.5, "RMS × √fan-in, just below PyTorch's default: counts only where nothing is learned")
    tiny = Limit(0.01, "RMS × √fan-in of every matrix: recipes start some so small, never all")
    tiny_least = Limit(3, "matrices at least, to speak of all of them")
    most_named = 20

    @classmethod
    def remedies_for(cls, finding: Finding) -> tuple[Remedy, ...]:
        if any(evidence.quantity == "weight_rms" and evidence.layer for evidence in finding.evidence):
            return REINITIALISE_THE_LAYER, INITIALISE_FOR_THE_ACTIVATION
        return INITIALISE_FOR_THE_ACTIVATION, ADD_NORMALISATION_OR_SHORTCUTS

    def judge_start(self, view: FrameView) -> Judgement | None:
        start = self._start
        if not start.is_path:
            return None
        path, grows = start.path, 0.0 if start.is_normalised else start.decades
        usual = np.exp(np.log(path).mean())
        small, large = path < self.small, path > self.large
        if usual < self.small and np.mean(small) > self.most and grows < -self.least_decades:
            return self._describe(view, small, "The signal dies out: the weights of {} start too small.")
        if len(path) >= self.tiny_least and path.max() < self.tiny:
            return self._describe(view, path > 0, "There is almost no signal: the weights of {} start too small.")
        is_large = usual > self.large and np.mean(large) > self.most
        if not (is_large and (grows > self.least_decades or self.is_sure(view))):
            large = path > self.large_for_one
            if not (grows > self.least_decades_of_usual and large.any() and self.is_hopeless(view)):
                return None
        return self._describe(view, large, "The signal blows up: the weights of {} start too large.", usual=1.41)

    def doubt(self, view: FrameView) -> Judgement | None:
        start = self._start
        if not start.is_path or start.is_normalised or not start.decades < -self.least_decades:
            return None
        if np.mean(start.path < self.somewhat_small) <= self.most:
            return None
        small = start.path < self.somewhat_small
        summary = "The signal dies out: the weights of {} start too small, and the loss does not fall."
        return replace(self._describe(view, small, summary), severity=Severity.MODERATE, confidence=0.8)

    def _describe(self, view: FrameView, unusual: Mask, summary: str, usual: float = 0.58) -> Judgement:
        start = self._start
        layers = tuple(start.modules[place] for place in np.flatnonzero(unusual).tolist())
        named, evidence = name_layers(view.layout, layers), start.evidence(usual)
        if np.count_nonzero(~unusual) < 2:  # a head often differs
            named = f"all layers ({named})"
        else:
            worst = int(np.abs(np.where(unusual, np.log(start.path), 0.0)).argmax())
            how, path = "RMS × √fan-in at the start", view.layout.path(start.modules[worst])
            evidence = (Evidence("weight_rms", path, float(start.path[worst]), usual, how), *evidence)
        return Judgement(Severity.SEVERE, layers[: self.most_named], view.step, 0.93, summary.format(named), evidence)
