"""DAT001: inputs that change their scale for good while the model trains."""

import math
from collections import deque
from statistics import median

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, Limit, Stage, having
from undertow.detect.features.module_structure import NONE, structure_of
from undertow.detect.features.remedies import STANDARDISE_THE_INPUTS
from undertow.schema import Evidence, Severity


class InputShift(Condition):
    """The data change their scale for good in the middle of a training.

    What it sees: The outputs of the first matrix, which are seen also where data enter beside an embedding. Where their
        deviation changes fivefold from one sampled step to the next and stays so, with hardly another weight, and the
        loss rises with it, the data have changed.
    Why it is bad: What was learnt holds for data of the old scale. A file that begins to use another unit, or a
        preprocessing step that is lost half-way, is the usual reason.
    When it is wrong: A new phase with other data on purpose looks the same, if the data differ in scale by such a
        factor.
    References: LeCun et al., "Efficient BackProp", 1998, section 4.3.
    """

    code, variant, formerly = "DAT001", "input-shift", "shift"
    places = ("data",)
    stage = Stage.DATA
    wakes_on = having("activation", "input_std")
    meaning = "What was learned before holds for data of another scale"
    remedies = (STANDARDISE_THE_INPUTS,)

    known = Limit.sample(5, "sampled steps to compare with")
    factor = Limit(5.0, "beyond the widest spread of the sampled steps before")
    patience = Limit.chance(2, "sampled steps in a row")
    steps = Limit.chance(3, "steps: less is a matter of single batches, whatever the length of the run")
    rise = Limit(4.0, "deviations of a single loss, by which it rose")
    of_weight = Limit(1.5, "times the norm of the weight, or the deviation of the data, before: a change explains it")

    def __init__(self) -> None:
        self._layout: LayerIndex | None = None
        self._first: int = NONE  # the module with the first matrix
        self._usual: deque[float] = deque(maxlen=32)
        self._level = self._highest = math.nan  # of the loss: at the latest usual sampled step, and since
        self._norm = self._norm_before = self._norm_since = math.nan  # of the first matrix
        self._odd, self._since, self._now = 0, 0, math.nan
        self._data = self._data_before = math.nan  # deviation of the data, where they are seen: now, and when usual

    @property
    def is_calm(self) -> bool:
        """Once the first weight is known, and nothing odd was seen, only sampled steps tell more."""
        is_ready = self._layout is not None and (self._first == NONE or not math.isnan(self._norm))
        return is_ready and not self._odd and super().is_calm

    def observe(self, view: FrameView) -> Judgement | None:
        loss = view.loss
        if loss is not None and loss.actors > 1:
            return self.stay()
        if view.layout is not self._layout:
            self._look(view.layout)
        if self._first == NONE:
            return None
        is_sampled = view.row("activation_std") is not None
        data = view.scalar("input_std")
        self._data = self._data if math.isnan(data) else data
        if view.row("weight_norm") is not None and (is_sampled or self._odd or math.isnan(self._norm)):
            norm = float(view.all_layers("weight_norm")[structure_of(view.layout).matrix[self._first]])
            self._norm = norm if math.isfinite(norm) else self._norm
            self._norm_since = self._norm if self._odd else math.nan
        if self._odd and loss is not None:
            self._highest = max(self._highest, loss.value)
        if is_sampled:
            self._take(view, float(view.all_layers("activation_std")[self._first]))
        if not self._odd:
            return self.end()
        if self._odd < self.patience or loss is None or view.step - self._since < self.steps:
            return self.stay()
        if self._highest > self._level + self.rise * loss.noise and self._is_of_the_data:
            return self.hold(None, lambda: self._describe(view))
        return self.stay()

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
        if len(self._usual) >= self.known:
            usual = median(self._usual)
            factor = max(deviation / usual, usual / deviation)
            spread = max(max(self._usual) / usual, usual / min(self._usual))
            if factor > self.factor * spread:
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
        if self._data_before < self.of_weight * self._data < self.of_weight**2 * self._data_before:
            return False
        before, since = self._norm_before, self._norm_since
        return before < self.of_weight * since and since < self.of_weight * before

    def _describe(self, view: FrameView) -> Judgement:
        first, usual = view.layout.path(self._first), median(self._usual)
        evidence = (
            Evidence("activation_std", first, self._now, usual, f"deviation of its outputs since step {self._since}"),
            Evidence("weight_norm", first, self._norm_since, self._norm_before, "its weight hardly changed meanwhile"),
            Evidence("loss", None, self._highest, self._level, "highest since then, and the level before"),
        )
        factor = self._now / usual
        size = f"{factor:.3g} times as large as" if factor > 1 else f"{factor:.2g} of"
        summary = (
            f"The inputs of {first} changed their scale at about step {self._since}: its outputs are {size} before "
            "with nearly the same weights, and the loss rose."
        )
        return Judgement(Severity.MODERATE, (self._first,), self._since, 0.75, summary, evidence)
