"""NUM005: an output overflows half precision."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, where
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.remedies import KEEP_VALUES_IN_RANGE, SMALLER_LOSS_SCALE
from undertow.schema import Evidence, Severity


class OutputOverflow(Condition):
    """An output is too large for half precision and turns infinite.

    What it sees: A module's output is infinite while the largest finite value there, or just before it, is at the limit
        of fp16, 65,504.
    Why it is bad: Infinity turns into NaN in the next layer, and from there everything is NaN.
    When it is wrong: Values that grow out of any range pass the limit, too; those beyond 1e9 are left to NUM004.
    References: Micikevicius et al., "Mixed Precision Training", 2017 (arXiv 1710.03740).
    """

    code, variant, formerly = "NUM005", "output-overflow", "overflow"
    stage, is_standing = Stage.OPTIMIZER, True
    meaning = "Outputs outside the range of the format become infinite, and the next layer makes NaN of them"
    remedies = (KEEP_VALUES_IN_RANGE, SMALLER_LOSS_SCALE)
    needs = frozenset({"activation"})
    wakes_on = where("activation_nonfinite_count", lambda counts: counts > 0)

    half_limit = Limit(65504.0, "the largest number of fp16")
    near = Limit(32768.0, "half of it: the values that did not overflow are not far below")
    not_half = Limit(1e9, "larger values are on their way out of any range")

    def observe(self, view: FrameView) -> Judgement | None:
        counts, ids = view.row("activation_nonfinite_count"), view.ids("activation")
        if counts is None or ids is None:
            return None
        bad = {int(i) for i in ids[counts > 0]}
        if view.skipped or not bad:
            return self.end()
        structure, largest = structure_of(view.layout), view.all_layers("activation_max_abs")
        first = next((i for i in structure.sequence if i in bad), None)
        if first is None:
            return None
        # The module itself, in half precision, or the one before it, whose output was then cast.
        before = structure.before(first)
        if self.near < largest[first] <= self.half_limit:
            return self.hold(first, lambda: self._describe(view, first, first, largest))
        if before >= 0 and self.near < largest[before] < self.not_half:
            return self.hold(before, lambda: self._describe(view, before, first, largest))
        return self.stay()

    def _describe(self, view: FrameView, place: int, first: int, largest: NDArray[np.float32]) -> Judgement:
        layout = view.layout
        how = f"largest finite output at step {view.step}; half precision ends at 65,504"
        evidence = (
            Evidence("activation_max_abs", layout.path(place), float(largest[place]), float(self.half_limit), how),
            Evidence("activation_nonfinite_count", layout.path(first), None, 0.0, "the first output with infinities"),
        )
        summary = f"The output of {layout.path(place)} overflows half precision."
        return Judgement(Severity.CRITICAL, (place,), view.step, 0.9, summary, evidence)
