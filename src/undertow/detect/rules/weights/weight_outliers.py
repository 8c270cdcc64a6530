"""WGT004: a few enormous weights."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, LayerStreak, LayerValues, Limit, Stage
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import DECAY_THE_WEIGHTS
from undertow.detect.features.wording import known, name_layers
from undertow.schema import Evidence, Remedy, Severity


class WeightOutliers(Condition):
    """A few weights of a matrix are enormous beside all others.

    What it sees: The largest absolute weight of each matrix against the 95th percentile of the same matrix, in the
        steps in which weights are measured; reported from a hundredfold on, at two measured steps in a row.
    Why it is bad: Such weights dominate their unit's output and cannot be represented beside the others in low
        precision. They come from a damaged checkpoint or memory, a bad batch, or a learning rate that was too high for
        a moment.
    When it is wrong: Normal weights have a ratio of 2 to 3, trained ones below 30. Matrices that are mostly exact zeros
        (pruned ones) are not judged, nor are those with a large weight in every row, as an identity has.
    References: Dettmers et al., "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", 2022 (arXiv
        2208.07339).
    """

    code, variant, formerly = "WGT004", "weight-outliers", "outliers"
    places = ("overwritten", "initialisation")
    stage = Stage.STEP
    needs = frozenset({"weight"})
    pace = ("weight", 5)
    meaning = "A few weights decide everything, which costs accuracy as soon as precision is lowered"
    remedies = (
        Remedy(
            "look-at-the-outliers",
            "See which rows hold the outliers; a few input features or tokens usually make them.",
            "weight = $tensor\nprint(weight.detach().abs().amax(dim=1).topk(5))",
            "None; it only looks.",
            when_not="The weights are not going to be quantised and the training goes well.",
        ),
        DECAY_THE_WEIGHTS,
    )

    ratio = Limit(
        100.0, "largest absolute weight over the 95th percentile: 2 to 3 for normal weights, below 30 trained"
    )
    severe = Limit(1_000.0, "the same ratio, for a severe one")
    per_row = Limit(0.25, "large weights to each row; an identity, as recurrent networks start with, has one")
    patience = Limit.chance(2, "measured steps in a row")

    _judged = LayerValues(np.bool_, False)

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._odd = LayerStreak()
        self._building = False

    def observe(self, view: FrameView) -> Judgement | None:
        largest, usual, ids = view.row("weight_max_abs"), view.row("weight_abs_p95"), view.ids("weight")
        if largest is None or usual is None or ids is None:
            return None
        odd = (largest > self.ratio * usual) & (usual > 0)
        norms = view.row("weight_norm")
        if norms is not None and odd.any():
            # How many weights as large as the largest make up the norm: an identity has one in every row.
            odd &= (norms / largest) ** 2 < self._few(view.layout)[ids]
        if not self._building and not odd.any():
            return None
        if view.layout is not self._layout:
            self._layout = view.layout
            self._judged[:] = False
            self._judged[structure_of(view.layout).matrices] = True
        measured = (usual > 0) & self._judged[ids]
        odd &= measured
        self._odd.end(ids[measured & ~odd])
        self._odd.hold(ids[odd], view.step)
        self._building = bool(self._odd.length.any())
        return self.hold_of(view, np.flatnonzero(self._odd.length >= self.patience), self._describe)

    def _few(self, layout: LayerIndex) -> NDArray[np.float64]:
        """Fewer than this many large weights are outliers, more are how the matrix was made."""
        few = np.full(layout.count, np.inf)
        for layer in layout.layers.parameters:
            if len(layer.shape) >= 2:
                few[layer.id] = max(2.0, self.per_row * min(layer.shape[:2]))
        return few

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        layout, chosen = view.layout, list(members)
        largest, usual = view.all_layers("weight_max_abs"), view.all_layers("weight_abs_p95")
        how = "largest absolute weight, against the 95th percentile"
        evidence = tuple(
            Evidence("weight_max_abs", layout.path(i), known(largest[i]), known(usual[i]), how) for i in members[:3]
        )
        most = float((largest[chosen] / usual[chosen]).max())
        summary = (
            f"A few weights of {name_layers(layout, members)} are {most:,.0f} times the 95th percentile of the matrix "
            "(2 to 30 is usual)."
        )
        enormous = bool((largest[chosen] > self.severe * usual[chosen]).any())
        severity = Severity.SEVERE if enormous else Severity.MODERATE
        return Judgement(severity, members, int(self._odd.since[chosen].min()), 0.9, summary, evidence)
