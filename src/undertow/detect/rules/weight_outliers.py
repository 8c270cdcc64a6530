"""WGT004."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.wording import known, name_layers
from undertow.detect.rule import Pace, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class WeightOutliers:
    """A few weights of a matrix are enormous beside all others.

    What it sees
    ------------
    The largest absolute weight of each matrix against the 95th percentile of the same matrix, in the steps in which
    weights are measured; reported from a hundredfold on, at two measured steps in a row.

    Why it is bad
    -------------
    Such weights dominate their unit's output and cannot be represented beside the others in low precision. They come
    from a damaged checkpoint or memory, a bad batch, or a learning rate that was too high for a moment.

    When it is wrong
    ----------------
    Normal weights have a ratio of 2 to 3, trained ones below 30. Matrices that are mostly exact zeros (pruned ones) are
    not judged, nor are those with a large weight in every row, as an identity has.

    References
    ----------
    Dettmers et al., "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", 2022 (arXiv 2208.07339).
    """

    code: ClassVar[str] = "WGT004"
    pace: ClassVar[Pace] = ("weight", 5)

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._judged: NDArray[np.bool_] = np.zeros(0, bool)
        self._odd = LayerStreak()
        self._building = False
        self._condition = Condition("outliers")

    def grow(self, count: int) -> None:
        self._judged = grown(self._judged, count, False)
        self._odd.grow(count)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        largest, usual, ids = view.row("weight_max_abs"), view.row("weight_abs_p95"), view.ids("weight")
        if largest is None or usual is None or ids is None:
            return ()
        odd = (largest > limit.OUTLIER * usual) & (usual > 0)
        norms = view.row("weight_norm")
        if norms is not None and odd.any():
            # How many weights as large as the largest make up the norm: an identity has one in every row.
            odd &= (norms / largest) ** 2 < self._few(view.layout)[ids]
        if not self._building and not odd.any():
            return ()
        if view.layout is not self._layout:
            self._layout = view.layout
            self._judged[:] = False
            self._judged[structure_of(view.layout).matrices] = True
        measured = (usual > 0) & self._judged[ids]
        odd &= measured
        self._odd.end(ids[measured & ~odd])
        self._odd.hold(ids[odd], view.step)
        self._building = bool(self._odd.length.any())
        due = np.flatnonzero(self._odd.length >= limit.OUTLIER_FRAMES)
        if not len(due):
            return self._condition.end()
        members = tuple(view.layout.in_order(due))
        return self._condition.hold(members, lambda: self._verdict(view, members))

    def _few(self, layout: LayerIndex) -> NDArray[np.float64]:
        """Fewer than this many large weights are outliers, more are how the matrix was made."""
        few = np.full(layout.count, np.inf)
        for layer in layout.layers.parameters:
            if len(layer.shape) >= 2:
                few[layer.id] = max(2.0, limit.OUTLIER_ROWS * min(layer.shape[:2]))
        return few

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout = view.layout
        largest, usual = view.all_layers("weight_max_abs"), view.all_layers("weight_abs_p95")
        how = "largest absolute weight, against the 95th percentile"
        evidence = tuple(
            Evidence("weight_max_abs", layout.path(i), known(largest[i]), known(usual[i]), how) for i in members[:3]
        )
        summary = f"A few weights of {name_layers(layout, members)} are enormous beside all others."
        first_step = int(self._odd.since[list(members)].min())
        enormous = bool((largest[list(members)] > 10 * limit.OUTLIER * usual[list(members)]).any())
        severity = Severity.SEVERE if enormous else Severity.MODERATE
        return Verdict("outliers", True, severity, members, first_step, 0.9, summary, evidence)
