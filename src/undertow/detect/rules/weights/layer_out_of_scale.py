"""WGT003: one layer begins far larger or smaller than the others."""

import numpy as np

from undertow.detect.engine import FrameView, Judgement, Limit
from undertow.detect.features.initial_scales import BadStart
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import INITIALISE_FOR_THE_ACTIVATION, REINITIALISE_THE_LAYER
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class LayerOutOfScale(BadStart):
    """The weight of one layer starts far larger or smaller than those of the others, and the signal jumps there.

    What it sees: At the first measured step, the scale of each weight matrix (its RMS times the root of its fan-in)
        beside the median of the others, and the jump of the signal at this layer. With fewer than three matrices there
        is nothing to compare with: only a scale above 20 counts.
    Why it is bad: After a layer that is too small, outputs hardly depend on the sample; after one that is too large
        activations saturate, and its own updates are too small to bring it back.
    When it is wrong: A normalisation right behind a layer makes its scale irrelevant, so such layers do not count; nor
        do projections of attention, matrices that start at zero on purpose, or a last layer that starts small. Residual
        paths carry the signal past a small layer: all that comes behind it must be small, too.
    References: Mishkin and Matas, "All you need is a good init", 2016 (arXiv 1511.06422).
    """

    variant = "layer-out-of-scale"
    places = ("initialisation", "parameter")
    meaning = "The signal fades or blows up at this layer, and the gradients of all layers before it with it"
    remedies = (REINITIALISE_THE_LAYER, INITIALISE_FOR_THE_ACTIVATION)

    far = Limit(1.2, "decades between its scale and the median of the others")
    jump_when_large = Limit(0.9, "decades by which the signal grows at a layer that is too large")
    small = Limit(0.03, "RMS × √fan-in: no usual recipe gives a single layer less")
    large_without_others = Limit(20, "RMS × √fan-in, where there are no others to compare with")
    least_others = Limit(3, "matrices, to have a median worth comparing with")
    left_behind = Limit(0.1, "of the signal before the layer, anywhere behind it: more has a way past it")

    def judge_start(self, view: FrameView) -> Judgement | None:
        odd = self._odd_ones(view)
        if not odd:
            return None
        scales, matrix = self._start.scales, structure_of(view.layout).matrix
        weights = [int(matrix[i]) for i in odd]
        size, what = ("large", "blows up") if scales[weights[0]] > 1 else ("small", "dies out")
        verb = "starts" if len(odd) == 1 else "start"
        summary = (
            f"The weight of {name_layers(view.layout, odd)} {verb} far too {size}: the signal {what} there, and the "
            "other layers are as usual."
        )
        how = "RMS × √fan-in at the start"
        evidence = tuple(Evidence("weight_rms", view.layout.path(i), float(scales[i]), 1.0, how) for i in weights[:3])
        return Judgement(Severity.SEVERE, tuple(odd), view.step, 0.9, summary, evidence)

    def _odd_ones(self, view: FrameView) -> list[int]:
        start, structure = self._start, structure_of(view.layout)
        modules, scales, signals = start.modules, start.path, start.signals
        logarithms = np.log10(scales)
        alone = len(modules) < self.least_others
        away = logarithms if alone else logarithms - np.median(logarithms)
        large = self.large_without_others if alone else self.large_for_one
        attending = _attention_parts(view)
        odd: list[int] = []
        for place in np.flatnonzero(np.abs(away) > self.far).tolist():
            module = modules[place]
            layer = view.layout.layers[module]
            if structure.is_normalised(module) or layer.group in attending or layer.path in attending:
                continue
            before = float(signals[place - 1]) if place else np.nan
            after, scale = float(signals[place]), float(scales[place])
            jump = float(np.log10(after / before)) if before > 0 and after > 0 else float(away[place])
            too_large = scale > large and jump > self.jump_when_large
            has_way_past = bool((signals[place + 1 :] > self.left_behind * before).any())
            too_small = scale < self.small and jump < -self.far and not has_way_past
            if too_large or (too_small and not alone and place < len(modules) - 1):
                odd.append(module)
        return odd


def _attention_parts(view: FrameView) -> set[str]:
    """Paths of modules that attend: the size of their logits is a question of its own. Where that is told of one of
    their matrices, what is around it attends.
    """
    logits = view.all_layers("attention_logit_max")
    attending = [view.layout.layers[i] for i in np.flatnonzero(~np.isnan(logits)).tolist()]
    return {one.path for one in attending} | {one.group for one in attending if one.module_type == "Linear"}
