"""OPT008: Adam's betas are exchanged."""

import math

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.remedies import USUAL_MOMENTUM
from undertow.schema import Evidence, Severity


class BetasExchanged(Condition):
    """Adam's first beta remembers many times as long as its second.

    What it sees: A first beta of 0.98 or more whose memory is five times that of the second.
    Why it is bad: A scale that forgets first makes the steps of a long memory as large as the latest gradient is small.
    When it is wrong: Never so far: in published recipes the mean remembers at most as long as the scale.
    References: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014 (arXiv 1412.6980).
    """

    code, variant, formerly = "OPT008", "betas-exchanged", "exchanged"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    pace = ("weight", 5)
    needs = frozenset({"optimizer"})
    meaning = "The steps follow gradients of hundreds of steps ago"
    remedies = (USUAL_MOMENTUM,)
    momentum = Limit(0.98, "first beta: shorter memories do no harm")
    memory = Limit(5.0, "memory of the mean over that of the scale; at most 1 in published recipes")

    def __init__(self) -> None:
        self._momentum, self._memory = 0.0, math.nan

    def observe(self, view: FrameView) -> Judgement | None:
        if view.skipped:
            return None
        momenta = matrices_of(view.layout).values(view, "optimizer_momentum")
        if not np.isnan(momenta).all():
            self._momentum = float(np.nanmax(momenta))
        self._memory = view.frame.scalars.get("optimizer_memory_ratio", self._memory)
        if self._momentum < self.momentum or not self._memory > self.memory:
            return self.end()
        return self.hold(None, self._describe)

    def _describe(self) -> Judgement:
        first = self._momentum
        second = 1.0 - self._memory * (1.0 - first)
        evidence = (
            Evidence("optimizer_momentum", None, first, 0.9, f"Adam's first beta; its second one is {second:.3g}"),
            Evidence("optimizer_memory_ratio", None, self._memory, 1.0, "memory of the mean over that of the scale"),
        )
        summary = (
            f"Adam's betas of {first:.3g} and {second:.3g} look exchanged: the mean of its gradients remembers "
            f"{self._memory:.0f}× as long as their scale."
        )
        return Judgement(Severity.SEVERE, (), 0, 0.95, summary, evidence)
