"""An optimizer that steps on and on, while none of its parameters gets a gradient any more."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.consecutive import grown
from undertow.detect.engine.view import FrameView
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import GradientState
from undertow.schema.severity import Severity


class Deserted:
    """The loss is still differentiated, so the gradients go elsewhere: to other tensors under the same names."""

    def __init__(self) -> None:
        self._condition = Condition("deserted")
        self._was_fed = False
        self._norm: NDArray[np.float32] = np.zeros(0, np.float32)  # of the latest gradient
        self._length = self._since = 0

    def grow(self, count: int) -> None:
        self._norm = grown(self._norm, count, np.nan)

    @property
    def is_waiting(self) -> bool:
        return self._length > 0

    def observe(self, view: FrameView, trained: NDArray[np.bool_]) -> tuple[Verdict, ...]:
        """`trained`: the parameters that optimizers hold, by layer. A frame that covers only some of them tells
        nothing: other optimizers have their turn."""
        states, ids = view.row("gradient_state"), view.ids("gradient")
        if states is None or ids is None:
            return self._condition.stay()
        left = (states == GradientState.PRESENT) & self._is_left_behind(view, ids)
        if ((states == GradientState.PRESENT) & ~left).any():
            self._was_fed, self._length = True, 0
            return self._condition.end()
        held = trained[ids]
        without = held & (left | (states == GradientState.NONE))
        if not self._was_fed or view.loss is None or not without.any() or held.sum() < trained.sum():
            return self._condition.stay()
        self._since = view.step if not self._length else self._since
        self._length += 1
        long = self._length >= limit.DESERTED_FEW and view.step - self._since >= limit.DESERTED_LONG
        if self._length < limit.DESERTED_PATIENCE and not long:
            return self._condition.stay()
        return self._condition.hold(True, lambda: self._verdict(int(without.sum())))

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> None:
        """Of frames in which gradients come as they should, the latest is remembered."""
        if batch.frames_with("gradient", first, last):
            ids, norms = batch.latest("gradient_norm", first, last)
            self._norm[ids] = norms

    def _is_left_behind(self, view: FrameView, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """A gradient that nobody clears stays the same to the last bit when its parameter is no longer used, and the
        optimizer goes on moving the weight by it. What moves and is used has another gradient afterwards."""
        norms, carried, moves = view.row("gradient_norm"), view.row("gradient_carried"), view.row("update_norm")
        if norms is None or carried is None:
            return np.zeros(len(ids), bool)
        same = (carried == 1) & (norms == self._norm[ids]) & np.isfinite(norms) & (norms > 0)
        known = ~np.isnan(norms)
        self._norm[ids[known]] = norms[known]
        moved = moves is not None and bool((moves > 0).any()) and not view.skipped
        return same if moved else np.zeros(len(ids), bool)

    def _verdict(self, count: int) -> Verdict:
        how = f"none of the {count} parameters of the optimizer has had a new gradient since step {self._since}"
        evidence = (Evidence("gradient_state", None, GradientState.NONE, GradientState.PRESENT, how),)
        summary = (
            f"Since step {self._since} no parameter that the optimizer holds gets a new gradient, though the loss is "
            "differentiated: have the model's parameters been replaced by new ones?"
        )
        return Verdict("deserted", True, Severity.CRITICAL, (), self._since, 0.95, summary, evidence)
