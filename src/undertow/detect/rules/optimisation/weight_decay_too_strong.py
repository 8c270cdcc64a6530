"""OPT008: weight decay takes the weights away."""

import math

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerValues, Limit, Stage
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.remedies import LOWER_THE_WEIGHT_DECAY
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class WeightDecayTooStrong(Condition):
    """Weight decay takes a noticeable share of every weight at each step, and the weights shrink.

    What it sees: Weight decay times learning rate of two per cent or more, of one group (of tables or of gains, too) or
        of all, or of 0.3 per cent while little is learnt; and norms that have lost more than a seventh of their
        largest.
    Why it is bad: It pulls all weights to zero whatever the data say.
    When it is wrong: It is judged by the weights that shrink, not by its number alone: a strong decay that the gradient
        holds against is not reported.
    References: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017 (arXiv 1711.05101).
    """

    code, variant, formerly = "OPT008", "weight-decay-too-strong", "decay"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    pace = ("weight", 5)
    needs = frozenset({"optimizer"})
    meaning = "The weights shrink whatever the gradients ask for"
    remedies = (LOWER_THE_WEIGHT_DECAY,)
    absurd = Limit(0.02, "of every weight at each step; published recipes: 1e-6 to 1e-3")
    large = Limit(3e-3, "of every weight at each step, where little is learnt")
    remaining = Limit(0.7, "of the first losses")
    kept = Limit(0.85, "of the largest norm, median")

    _largest_norm = LayerValues(np.float32, math.nan)  # of each layer

    def observe(self, view: FrameView) -> Judgement | None:
        matrices = matrices_of(view.layout)
        if view.skipped or not len(matrices):
            return None
        settings = view.all_layers("optimizer_weight_decay")
        decay, norms = settings * view.all_layers("optimizer_rate"), view.all_layers("weight_norm")
        self._largest_norm = np.fmax(self._largest_norm, norms)
        known = np.zeros(len(decay), bool)
        known[matrices.ids] = np.isfinite(decay[matrices.ids])
        # A group of its own may have a decay that no recipe has, also one of tables or of gains; a large one is judged
        # by most of the model.
        is_absurd = decay > self.absurd
        if not known.any() and not is_absurd.any():
            return self.stay()
        members = is_absurd if is_absurd.any() else known
        share = float(np.median(decay[members]))
        is_unlearnt = view.loss is not None and not view.loss.remaining < self.remaining
        if not (share > self.absurd or (share > self.large and is_unlearnt)):
            return self.end()
        kept = (norms / self._largest_norm)[members]
        kept = kept[np.isfinite(kept)]
        if not len(kept) or float(np.median(kept)) > self.kept:
            return self.stay()
        is_everywhere = bool(members[known].all()) and bool(known.any())
        layers = () if is_everywhere else tuple(view.layout.in_order(np.flatnonzero(members)))
        setting, rest = float(np.median(settings[members])), float(np.median(kept))
        return self.hold(layers, lambda: self._describe(view, layers, setting, share, rest))

    def _describe(self, view: FrameView, layers: tuple[int, ...], decay: float, share: float, rest: float) -> Judgement:
        place = view.layout.path(layers[0]) if layers else None
        how = f"times the learning rate: {share:.1%} of every step"
        evidence = (
            Evidence("optimizer_weight_decay", place, decay, 0.01, how),
            Evidence("weight_norm", place, rest, 1.0, "what is left of the weight matrices' largest norms, median"),
        )
        whose = f"every weight of {name_layers(view.layout, layers)}" if layers else "every weight"
        summary = (
            f"A weight decay of {decay:g} takes {share:.1%} of {whose} at each step: the weights shrink to "
            f"{rest:.0%} of what they were, whatever the gradient says."
        )
        return Judgement(Severity.SEVERE, layers, 0, 0.95, summary, evidence)
