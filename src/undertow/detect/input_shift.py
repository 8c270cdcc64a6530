"""Data that change their size for good in the middle of a training, as where a file begins to use another unit."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.module_structure import NONE, structure_of
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class InputShift:
    """By the deviation of the data themselves, or of what the first matrix makes of them while it is hardly changed:
    beside an embedding, data enter where nobody sees them."""

    def __init__(self) -> None:
        self._condition = Condition("shift")
        self._layout: LayerIndex | None = None
        self._first: int = NONE  # the module with the first matrix
        self._usual: deque[float] = deque(maxlen=32)
        self._level = self._highest = math.nan  # of the loss: at the latest usual look, and since
        self._norm = self._norm_before = self._norm_since = math.nan  # of the first matrix
        self._odd, self._since, self._now = 0, 0, math.nan
        self._data = self._data_before = math.nan  # deviation of the data, where they are seen: now, and when usual

    @property
    def follows(self) -> bool:
        """Something odd was seen, so that all that comes tells more."""
        return self._odd > 0 or self._condition.is_open

    def knows(self, layout: LayerIndex) -> bool:
        """Whether frames without outputs have nothing to tell while nothing odd was seen."""
        return layout is self._layout and (self._first == NONE or not math.isnan(self._norm))

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.loss
        if loss is not None and loss.actors > 1:
            return self._condition.stay()
        if view.layout is not self._layout:
            self._look(view.layout)
        if self._first == NONE:
            return ()
        looks = view.row("activation_std") is not None
        data = view.scalar("input_std")
        self._data = self._data if math.isnan(data) else data
        if view.row("weight_norm") is not None and (looks or self._odd or math.isnan(self._norm)):
            norm = float(view.all_layers("weight_norm")[structure_of(view.layout).matrix[self._first]])
            self._norm = norm if math.isfinite(norm) else self._norm
            self._norm_since = self._norm if self._odd else math.nan
        if self._odd and loss is not None:
            self._highest = max(self._highest, loss.value)
        if looks:
            self._take(view, float(view.all_layers("activation_std")[self._first]))
        if not self._odd:
            return self._condition.end()
        if self._odd < limit.INPUT_FRAMES or loss is None or view.step - self._since < limit.SHIFT_STEPS:
            return self._condition.stay()
        rises = self._highest > self._level + limit.SHIFT_DEVIATIONS * loss.noise
        if not rises or not self._is_of_the_data:
            return self._condition.stay()
        return self._condition.hold(None, lambda: self._verdict(view))

    def _look(self, layout: LayerIndex) -> None:
        structure = structure_of(layout)
        first = next((i for i in structure.sequence if structure.matrix[i] != NONE), NONE)
        if first != self._first:
            self._layout, self._first, self._odd = layout, first, 0
            self._usual.clear()
        self._layout = layout

    def _take(self, view: FrameView, deviation: float) -> None:
        if not 0 < deviation < math.inf:
            return
        if len(self._usual) >= limit.BATCH_KNOWN:
            usual = median(self._usual)
            factor = max(deviation / usual, usual / deviation)
            spread = max(max(self._usual) / usual, usual / min(self._usual))
            if factor > limit.BATCH_FACTOR * spread:
                self._since = self._since if self._odd else view.step
                self._odd += 1
                self._now = deviation
                return
        self._usual.append(deviation)
        self._odd = 0
        self._norm_before, self._data_before = self._norm, self._data
        if view.loss is not None:
            self._level = self._highest = view.loss.level

    @property
    def _is_of_the_data(self) -> bool:
        """A weight that has grown explains as much; one that was not measured since may have. And data that are seen,
        and are as they were: then something else moved the outputs, a bias for one."""
        if self._data_before < limit.SHIFT_OF_WEIGHT * self._data < limit.SHIFT_OF_WEIGHT**2 * self._data_before:
            return False
        before, since = self._norm_before, self._norm_since
        return before < limit.SHIFT_OF_WEIGHT * since and since < limit.SHIFT_OF_WEIGHT * before

    def _verdict(self, view: FrameView) -> Verdict:
        first, usual = view.layout.path(self._first), median(self._usual)
        evidence = (
            Evidence("activation_std", first, self._now, usual, f"deviation of its outputs since step {self._since}"),
            Evidence("weight_norm", first, self._norm_since, self._norm_before, "its weight hardly changed meanwhile"),
            Evidence("loss", None, self._highest, self._level, "highest since then, and the level before"),
        )
        factor = self._now / usual
        size = f"{factor:.3g} times as large as" if factor > 1 else f"{factor:.2g} of"
        summary = (
            f"Since about step {self._since} what enters {first} is another kind of data: its outputs are {size} "
            "before, with hardly another weight, and the loss rose. Has a unit or a scale changed?"
        )
        return Verdict("shift", True, Severity.MODERATE, (self._first,), self._since, 0.75, summary, evidence)
