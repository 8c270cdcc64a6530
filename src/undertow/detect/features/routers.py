"""Gates of a mixture of experts: which modules they are, how many experts each has, and how far the model has moved."""

import numpy as np

from undertow.detect.engine import FrameBatch, FrameView, Limit, Tracker, having
from undertow.detect.features.matrices import matrices_of, middle


class Routers(Tracker):
    """`experts` by gate; `drift` is the way of the median matrix that moves: experts that are never chosen do not."""

    wakes_on = having("activation")
    order = ("router-collapse", "idle-experts")
    moved = Limit(1e-5, "relative distance from the start: less is rounding")

    def __init__(self) -> None:
        self.experts: dict[int, int] = {}
        self.drift = np.nan

    @property
    def is_calm(self) -> bool:
        return not self.experts

    def follow(self, view: FrameView) -> None:
        self._measure_drift(view)
        loads, outputs, ids = view.row("router_load_max"), view.row("router_outputs"), view.ids("activation")
        if loads is not None and outputs is not None and ids is not None:
            measured = ~np.isnan(loads)
            self.experts |= dict(zip(ids[measured].tolist(), outputs[measured].astype(int).tolist(), strict=True))

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        for place in batch.frames_with("weight", first, last)[-1:]:
            self._measure_drift(batch.view(place))

    def _measure_drift(self, view: FrameView) -> None:
        if view.row("weight_drift") is not None:
            drift = matrices_of(view.layout).values(view, "weight_drift")
            self.drift = middle(drift[drift > self.moved])
