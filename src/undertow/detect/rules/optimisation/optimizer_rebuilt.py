"""OPT008: the optimizer is built anew at every step, or in every epoch."""

import math
from collections import deque

import numpy as np

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage
from undertow.detect.features.matrices import Matrices, matrices_of
from undertow.schema import Evidence, Remedy, Severity


class OptimizerRebuilt(Condition):
    """The optimizer is built anew, or its state is reset, at every step or at even intervals.

    What it sees: Another optimizer object at three measured steps in a row, or a step counter in its state that stands
        still while weights move; or three times, at even intervals and with the same rate, another optimizer object
        for the same parameters, as at the top of a loop over epochs.
    Why it is bad: Momentum and second moment are lost each time. A rebuilt Adam has no memory and moves every weight by
        the full rate, whichever way; with intervals of more than two and a half times what the momentum remembers (ten
        steps, at 0.9) most of it is found again.
    When it is wrong: Rebuilding the optimizer between phases is fine, once or twice, or with another rate each time, or
        together with the model. Plain SGD has no memory to lose.
    References: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014 (arXiv 1412.6980).
    """

    code, variant = "OPT008", "optimizer-rebuilt"
    places = ("optimizer",)
    formerly = "rebuilt again optimizer-rebuilt-every-step optimizer-rebuilt-every-epoch"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    pace = ("weight", 5)
    needs = frozenset({"optimizer", "optimizer_made_anew", "lr"})
    meaning = "The optimizer never builds up its momentum and its second moment"
    remedies = (
        Remedy(
            "build-the-optimizer-once",
            "Build the optimizer once, before the loop: a new one forgets its moments and its schedule.",
            "optimizer = $build_call\nfor batch in loader:\n    train_step(batch, optimizer)",
            "None.",
            when_not="It is rebuilt rarely and on purpose, at a new stage of the training.",
        ),
    )
    patience = Limit.chance(3, "measured steps in a row")
    times = Limit(3, "in a row at even intervals: a loop does it, not a plan")
    same_rate = Limit(0.01, "by which rates differ: another one is of another phase of the training")
    uneven = Limit(0.1, "by which an interval may differ from a multiple of the shortest")
    harmful_within = Limit(2.5, "times what the momentum remembers: after longer ones most of it is found again")

    def __init__(self) -> None:
        self._always = Consecutive()
        self._steps: deque[int] = deque(maxlen=int(self.times))  # with another object than before, and the same rate
        self._has_memory = self._is_new = False
        self._memory = 10  # steps that the momentum remembers
        self._rate = math.nan
        self._latest_new, self._interval = -1, 1  # the latest such step, and the steps between it and the one before
        self._counter = self._counter_step = -1.0

    def observe(self, view: FrameView) -> Judgement | None:
        rate, before = view.scalar("lr"), self._rate
        self._rate = rate if rate > 0 else before
        if view.ids("optimizer") is None and "optimizer_made_anew" not in view.frame.scalars:
            return self.stay()
        if view.scalar("optimizer_made_anew") == 1:
            self._interval = view.step - self._latest_new if self._latest_new >= 0 else 1
            self._latest_new = view.step
            if abs(rate / before - 1) > self.same_rate:
                self._steps.clear()
            else:
                self._steps.append(view.step)
        matrices = matrices_of(view.layout)
        if view.ids("optimizer") is not None and not view.skipped and len(matrices):
            self._look(view, matrices)
        if self._always.count >= self.patience:
            return self.hold((self._is_new, self._lives), self._describe_always)
        is_alone = view.loss is None or view.loss.actors == 1
        if self._has_memory and is_alone and len(self._steps) == self.times and self._are_even():
            return self.hold("now and then", self._describe_regular)
        return self.stay() if self._always.count else self.end()

    def _look(self, view: FrameView, matrices: Matrices) -> None:
        """Is it another object than at the measured step before, or has its own counter not advanced since?"""
        flags, counters = (matrices.values(view, f"optimizer_{name}") for name in ("rebuilt", "step_count"))
        momenta = matrices.values(view, "optimizer_momentum")
        self._has_memory = bool((counters >= 0).any() or (momenta > 0).any())
        if ((momenta > 0) & (momenta < 1)).any():
            self._memory = round(1 / (1 - float(np.nanmax(momenta[momenta < 1]))))
        flags = flags[~np.isnan(flags)]
        self._is_new = len(flags) > 0 and float(flags.mean()) > 0.5
        counter = float(np.nanmax(counters)) if (counters >= 0).any() else -1.0
        stands = 0 <= counter <= self._counter and view.step > self._counter_step
        if view.ids("update") is not None:  # parameters without a gradient are not stepped, and not counted
            stands = stands and bool((matrices.values(view, "update_norm") > 0).any())
        if counter >= 0:
            self._counter, self._counter_step = counter, view.step
        if (self._is_new or stands) and self._has_memory:
            self._always.hold(view.step)
        else:
            self._always.end()

    @property
    def _lives(self) -> int:
        """Steps between one optimizer and the next: 1 where its own counter, at its highest, has come no further."""
        return max(self._interval, 1) if self._is_new else max(round(self._counter), 1)

    def _are_even(self) -> bool:
        gaps = [later - earlier for earlier, later in zip(self._steps, list(self._steps)[1:])]
        times = [gap / min(gaps) for gap in gaps]  # now and then one is not seen
        return all(abs(ratio / round(ratio) - 1) <= self.uneven for ratio in times)

    def _describe_always(self) -> Judgement:
        evidence: list[Evidence] = []
        if self._is_new:
            how = f"another optimizer object at each of the last {self._always.count} measured steps"
            evidence.append(Evidence("optimizer_rebuilt", None, 1.0, 0.0, how))
        if self._counter >= 0:
            how = "its own counter does not advance"
            evidence.append(Evidence("optimizer_step_count", None, self._counter, None, how))
        often = "at every step" if self._lives == 1 else f"about every {self._lives} steps"
        summary = f"The optimizer is rebuilt {often}: its momentum and its second moment are lost each time."
        if not self._is_new:
            summary = f"The optimizer's state is reset {often}: its step counter does not advance."
        severity = Severity.SEVERE if self._lives == 1 else self._severity(self._lives)
        return Judgement(severity, (), self._always.since, 0.97, summary, tuple(evidence))

    def _severity(self, every: float) -> Severity:
        return Severity.MODERATE if every <= self.harmful_within * self._memory else Severity.MILD

    def _describe_regular(self) -> Judgement:
        every = (self._steps[-1] - self._steps[0]) / (len(self._steps) - 1)
        how = f"another optimizer object for the same parameters, every {every:.0f} steps, latest at {self._steps[-1]}"
        evidence = (Evidence("optimizer_rebuilt", None, 1.0, 0.0, how),)
        summary = (
            f"The optimizer is rebuilt every {every:.0f} steps, as inside a loop over epochs: its momentum and its "
            "second moment are lost each time."
        )
        return Judgement(self._severity(every), (), self._steps[0], 0.8, summary, evidence)
