"""How often the optimizer of the same parameters is made anew, and at which intervals."""

import math
from collections import deque

from undertow.detect.engine import FrameBatch, FrameView, Limit, Tracker, having
from undertow.detect.features.matrices import matrices_of
from undertow.schema import Remedy

BUILD_THE_OPTIMIZER_ONCE = Remedy(
    "build-the-optimizer-once",
    "Build the optimizer once, before the loop: a new one forgets its moments and its schedule.",
    "optimizer = $build_call\nfor batch in loader:\n    train_step(batch, optimizer)",
    "None.",
    when_not="It is rebuilt rarely and on purpose, at a new stage of the training.",
)


class RebuiltOptimizer(Tracker):
    """`steps` are those at which another optimizer object, with the rate of the one before, took over the same
    parameters.
    """

    wakes_on = having("optimizer", "optimizer_made_anew")
    order = ("optimizer-rebuilt-every-step", "optimizer-rebuilt-every-epoch")

    same_rate = Limit(0.01, "by which rates differ: another one is of another phase of the training")
    times = Limit(3, "in a row at even intervals: a loop does it, not a plan")
    uneven = Limit(0.1, "by which an interval may differ from a multiple of the shortest")

    def __init__(self) -> None:
        self.steps: deque[int] = deque(maxlen=int(self.times))
        self.has_memory = False  # plain SGD has none to lose
        self._rate = math.nan

    @property
    def is_calm(self) -> bool:
        return not self.is_regular

    def follow(self, view: FrameView) -> None:
        rate, before = view.scalar("lr"), self._rate
        self._rate = rate if rate > 0 else before
        if view.scalar("optimizer_made_anew") == 1:
            if abs(rate / before - 1) > self.same_rate:
                self.steps.clear()
            else:
                self.steps.append(view.step)
        matrices = matrices_of(view.layout)
        if view.ids("optimizer") is not None and not view.skipped and len(matrices):
            counters, momenta = (matrices.values(view, f"optimizer_{name}") for name in ("step_count", "momentum"))
            self.has_memory = bool((counters >= 0).any()) or bool((momenta > 0).any())

    def skip(self, batch: FrameBatch, first: int, last: int) -> None:
        rates = batch.scalar("lr")[first:last]
        known = rates[rates > 0]
        self._rate = float(known[-1]) if len(known) else self._rate

    @property
    def is_regular(self) -> bool:
        if len(self.steps) < self.times:
            return False
        gaps = [later - earlier for earlier, later in zip(self.steps, list(self.steps)[1:])]
        times = [gap / min(gaps) for gap in gaps]  # now and then one is not seen
        return all(abs(ratio / round(ratio) - 1) <= self.uneven for ratio in times)

    @property
    def interval(self) -> float:
        return (self.steps[-1] - self.steps[0]) / (len(self.steps) - 1)
