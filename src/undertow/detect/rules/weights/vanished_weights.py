"""WGT005: next to nothing is left of a weight matrix."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, Limit, Stage
from undertow.detect.features.initial_weights import InitialWeights
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import LET_ONLY_THE_OPTIMIZER_WRITE, LOWER_THE_WEIGHT_DECAY
from undertow.detect.features.wording import known, name_layers
from undertow.schema import Evidence, Severity


class VanishedWeights(Condition):
    """A weight matrix has lost all but a hundredth of its norm.

    What it sees: The norm of each weight matrix beside the one at the start, however it came about: the weight may be
        clamped, or multiplied by something small between the steps.
    Why it is bad: Weights near zero pass nothing on, neither the signal nor its gradient.
    When it is wrong: Pruning a whole matrix on purpose looks the same. No healthy training takes a matrix that far.
    References: Arjovsky et al., "Wasserstein GAN", 2017 (arXiv 1701.07875), on clamped weights.
    """

    code, variant, formerly = "WGT005", "vanished-weights", "gone"
    stage = Stage.OPTIMIZER
    meaning = "The layer passes nothing on, neither the signal nor its gradient"
    remedies = (LET_ONLY_THE_OPTIMIZER_WRITE, LOWER_THE_WEIGHT_DECAY)
    needs = frozenset({"weight"})
    pace = ("weight", 5)

    left = Limit(0.01, "of the norm at the start: no healthy matrix has lost so much")
    frames = Limit(2, "measured steps in a row: once may be a moment between two writes")

    def __init__(self) -> None:
        self._start = InitialWeights()
        self._gone = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        norms, ids = view.row("weight_norm"), view.ids("weight")
        if view.skipped or not self._start.take(view) or norms is None or ids is None:
            return None
        gone = norms < self.left * self._start.norm[ids]
        if not gone.any() and not self._gone.length.any():
            return None
        self._gone.end(ids[~gone & ~np.isnan(norms)])
        self._gone.hold(ids[gone], view.step)
        matrices = structure_of(view.layout).matrices
        members = matrices[self._gone.length[matrices] >= self.frames]
        if not len(members):
            return self.end()
        ordered = tuple(view.layout.in_order(members))
        return self.hold(ordered, lambda: self._describe(view, ordered))

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        layout, norms, start = view.layout, view.all_layers("weight_norm"), self._start.norm
        how = "norm now, against the norm at the start"
        evidence = tuple(
            Evidence("weight_norm", layout.path(i), known(norms[i]), known(start[i]), how) for i in members[:3]
        )
        verb = "has" if len(members) == 1 else "have"
        summary = f"{name_layers(layout, members)} {verb} been pressed to nothing: less than 1 % of the start is left."
        first_step = int(self._gone.since[list(members)].min())
        return Judgement(Severity.SEVERE, members, first_step, 0.95, summary, evidence)
