"""OPT008: weight decay takes the weights away."""

import math

import numpy as np

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, LayerValues, Limit, Stage
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.rate_history import RateHistory
from undertow.detect.features.remedies import LOWER_THE_WEIGHT_DECAY
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Severity


class WeightDecayTooStrong(Condition):
    """Weight decay takes a noticeable share of every weight at each step, and the weights shrink.

    What it sees: Weight decay times learning rate of two per cent or more, of one group (of tables or of gains, too) or
        of all, or of 0.3 per cent while little is learnt; and norms that have lost more than a seventh of their
        largest since.
    Why it is bad: It pulls all weights to zero whatever the data say.
    When it is wrong: It is judged by the weights that shrink, not by its number alone: a strong decay that the gradient
        holds against is not reported, nor is one that a jump of the learning rate has made strong, nor 0.1 or less
        under an optimizer that scales its gradients: there the rate is at fault.
    References: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017 (arXiv 1711.05101).
    """

    code, variant, formerly = "OPT008", "weight-decay-too-strong", "decay"
    places = ("setting", "optimizer")
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    pace = ("weight", 5)
    needs = frozenset({"optimizer"})
    meaning = "The weights shrink, whatever the gradients are"
    remedies = (LOWER_THE_WEIGHT_DECAY,)
    absurd = Limit(0.02, "of every weight at each step; published recipes: 1e-6 to 1e-3")
    large = Limit(3e-3, "of every weight at each step, where little is learnt")
    remaining = Limit(0.7, "of the first losses")
    usual = Limit(1e-3, "of every weight at each step: the most that published recipes take")
    kept = Limit(0.85, "of the largest norm, median")
    ordinary = Limit(0.1, "under an optimizer that scales its gradients: recipes use 0.01 to 0.1")

    _largest_norm = LayerValues(np.float32, math.nan)  # of each layer

    def __init__(self) -> None:
        self._rates = RateHistory()
        self._strong = Consecutive()  # looks at such a decay

    def observe(self, view: FrameView) -> Judgement | None:
        matrices = matrices_of(view.layout)
        if view.skipped or not len(matrices):
            return None
        settings, rates = view.all_layers("optimizer_weight_decay"), view.all_layers("optimizer_rate")
        decay, norms = settings * rates, view.all_layers("weight_norm")
        self._largest_norm = np.fmax(self._largest_norm, norms)
        known = np.zeros(len(decay), bool)
        known[matrices.ids] = np.isfinite(decay[matrices.ids])
        # A group of its own may have a decay that no recipe has, also one of tables or of gains; a large one is judged
        # by most of the model.
        is_absurd = decay > self.absurd
        is_scaled = bool((view.all_layers("optimizer_eps_ratio") > 0).any())
        if is_scaled and not np.fmax.reduce(settings, initial=0.0) > self.ordinary:
            return self.end()
        if not known.any() and not is_absurd.any():
            return self.stay()
        members = is_absurd if is_absurd.any() else known
        share = float(np.median(decay[members]))
        self._rates.add(float(rates[members | known].max()), view.step)
        if not self._strong.follow(share > self.large and not self._has_jumped, view.step):
            return self.end()
        is_unlearnt = view.loss is not None and not view.loss.remaining < self.remaining
        if not (share > self.absurd or is_unlearnt):
            return self.end()
        kept = (norms / self._largest_norm)[members]
        kept = kept[np.isfinite(kept)]
        if not len(kept) or float(np.median(kept)) > self.kept:
            return self.stay()
        is_everywhere = bool(members[known].all()) and bool(known.any())
        layers = () if is_everywhere else tuple(view.layout.in_order(np.flatnonzero(members)))
        setting, rest = float(np.median(settings[members])), float(np.median(kept))
        if not setting > 0:
            return self.stay()
        return self.hold(layers, lambda: self._describe(view, layers, setting, share, rest))

    @property
    def _has_jumped(self) -> bool:
        """The learning rate did, and is still up there: the decay is as it was."""
        return self._rates.jump_step >= 0 and self._rates.now > self._rates.peak / 2

    def _describe(self, view: FrameView, layers: tuple[int, ...], decay: float, share: float, rest: float) -> Judgement:
        place = view.layout.path(layers[0]) if layers else None
        how = f"times the learning rate: {share:.1%} of every weight at each step; {self.usual:.1%} is strong already"
        evidence = (
            Evidence("optimizer_weight_decay", place, decay, decay * self.usual / share, how),
            Evidence("weight_norm", place, rest, 1.0, "what is left of the weight matrices' largest norms, median"),
        )
        whose = f"every weight of {name_layers(view.layout, layers)}" if layers else "every weight"
        summary = (
            f"A weight decay of {decay:g} takes {share:.1%} of {whose} at each step: the weights shrink to "
            f"{rest:.0%}, whatever the gradients are."
        )
        return Judgement(Severity.SEVERE, layers, self._strong.since, 0.95, summary, evidence)
