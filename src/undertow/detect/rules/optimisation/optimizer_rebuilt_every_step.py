"""OPT008: another optimizer at every step."""

import numpy as np

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.matrices import Matrices, matrices_of
from undertow.detect.features.rebuilt_optimizer import BUILD_THE_OPTIMIZER_ONCE, RebuiltOptimizer
from undertow.schema import Evidence, Severity


class OptimizerRebuiltEveryStep(Condition):
    """The optimizer is built anew, or its state is reset, at every step.

    What it sees: Another optimizer object at three measured steps in a row, or a step counter in its state that stands
        still while weights move.
    Why it is bad: Momentum and second moment are lost each time. A rebuilt Adam has no memory and moves every weight by
        the full rate, whichever way.
    When it is wrong: Plain SGD has no memory to lose and is not reported.
    References: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014 (arXiv 1412.6980).
    """

    code, variant, formerly = "OPT008", "optimizer-rebuilt-every-step", "rebuilt"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    pace = ("weight", 5)
    _optimizer = Shared(RebuiltOptimizer)
    meaning = "The optimizer forgets at every step what the steps before had taught it"
    remedies = (BUILD_THE_OPTIMIZER_ONCE,)
    patience = Limit(3, "measured steps in a row")

    def __init__(self) -> None:
        self._streak = Consecutive()
        self._counter = self._counter_step = -1.0

    def observe(self, view: FrameView) -> Judgement | None:
        matrices = matrices_of(view.layout)
        if view.ids("optimizer") is None or view.skipped or not len(matrices):
            return None
        flags = matrices.values(view, "optimizer_rebuilt")
        flags = flags[~np.isnan(flags)]
        is_new = len(flags) > 0 and float(flags.mean()) > 0.5
        counters = matrices.values(view, "optimizer_step_count")
        counter = float(np.nanmax(counters)) if (counters >= 0).any() else -1.0
        stands = self._stands(view, matrices, counter)
        if not (is_new or stands) or not self._optimizer.has_memory:
            self._streak.end()
            return self.end()
        if self._streak.hold(view.step) < self.patience:
            return None
        return self.hold(is_new, lambda: self._describe(is_new, counter))

    def _stands(self, view: FrameView, matrices: Matrices, counter: float) -> bool:
        """Whether the optimizer's own counter has not advanced since it was last seen."""
        stands = 0 <= counter <= self._counter and view.step > self._counter_step
        if view.ids("update") is not None:  # parameters without a gradient are not stepped, and not counted
            stands = stands and bool((matrices.values(view, "update_norm") > 0).any())
        if counter >= 0:
            self._counter, self._counter_step = counter, view.step
        return stands

    def _describe(self, is_new: bool, counter: float) -> Judgement:
        evidence: list[Evidence] = []
        if is_new:
            how = f"another optimizer object at each of the last {self._streak.count} measured steps"
            evidence.append(Evidence("optimizer_rebuilt", None, 1.0, 0.0, how))
        if counter >= 0:
            evidence.append(Evidence("optimizer_step_count", None, counter, None, "its own counter does not advance"))
        summary = "The optimizer is rebuilt at every step: its momentum and its second moment are lost each time."
        if not is_new:
            summary = "The optimizer's state is reset at every step: its step counter does not advance."
        return Judgement(Severity.SEVERE, (), self._streak.since, 0.97, summary, tuple(evidence))
