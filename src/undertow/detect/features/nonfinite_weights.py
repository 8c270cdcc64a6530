"""Weights that hold NaN or infinity, parted into those that are trained and those that are frozen."""

import numpy as np

from undertow.detect.engine import FrameView, LayerValues, Tracker, changed, where
from undertow.schema import Evidence, GradientState


class NonfiniteWeights(Tracker):
    """`trained` and `frozen` are the ids of such weights at this step; `is_over` when none is left anywhere."""

    needs = frozenset({"weight", "gradient"})
    wakes_on = where("weight_nonfinite_count", lambda counts: counts > 0) | changed("gradient_state")

    _is_frozen = LayerValues(np.bool_, False)
    _is_bad = LayerValues(np.bool_, False)

    def __init__(self) -> None:
        self.is_informed = self.is_over = False
        self.trained = self.frozen = np.zeros(0, np.int32)

    def follow(self, view: FrameView) -> None:
        states, holders = view.row("gradient_state"), view.ids("gradient")
        if states is not None and holders is not None:
            known = ~np.isnan(states)
            self._is_frozen[holders[known]] = states[known] == GradientState.FROZEN
        counts, ids = view.row("weight_nonfinite_count"), view.ids("weight")
        self.is_informed = counts is not None and ids is not None
        if counts is None or ids is None:
            return
        measured, hit = ~np.isnan(counts), counts > 0
        self._is_bad[ids[measured]] = hit[measured]
        self.is_over = not self._is_bad.any()
        # Another optimizer's frame says nothing about the weights that were hit.
        self.is_informed = self.is_over or bool(hit.any())
        resting = self._is_frozen[ids] | ~view.layout.is_trainable[ids]
        self.trained, self.frozen = ids[hit & ~resting], ids[hit & resting]


def evidence_of(view: FrameView, layers: list[int]) -> tuple[Evidence, ...]:
    layout, counts = view.layout, view.all_layers("weight_nonfinite_count")
    return tuple(
        Evidence("weight_nonfinite_count", layout.path(i), float(counts[i]), 0.0,
                 f"NaN or infinite elements of {layout.layers[i].parameter_count:,} after step {view.step}")
        for i in layers[:5]
    )  # fmt: skip
