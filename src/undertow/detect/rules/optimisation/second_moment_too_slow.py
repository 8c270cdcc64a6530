"""OPT008: Adam's second moment remembers too long."""

import math
from collections import deque

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.matrices import matrices_of, middle
from undertow.schema import Evidence, Remedy, Severity


class SecondMomentTooSlow(Condition):
    """Adam's second moment remembers far longer than usual, and its steps grow longer than the learning rate.

    What it sees: A second beta whose memory is 250 times that of the first or more, steps that are longer than the rate
        twice within ten steps, and a loss that leaps meanwhile.
    Why it is bad: When gradients grow, they are divided by what they were long ago: steps become several times too
        long.
    When it is wrong: Usual betas are not reported; there the first of all steps is as long as the rate, and the others
        are shorter.
    References: Wortsman et al., "Stable and low-precision training for large-scale vision-language models", 2023
        (arXiv 2304.13013).
    """

    code, variant, formerly = "OPT008", "second-moment-too-slow", "memory"
    places = ("setting", "optimizer")
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    pace = ("weight", 5)
    wakes_on = having("optimizer_memory_ratio")
    meaning = "The optimizer scales its steps by gradients of long ago"
    remedies = (
        Remedy(
            "faster-second-moment",
            "Lower Adam's beta2 to 0.95, so that its scale follows when gradients change.",
            'for group in optimizer.param_groups:\n    group["betas"] = (group["betas"][0], 0.95)',
            "Steps are a little noisier.",
            when_not="The gradients are stable and only one batch was odd.",
        ),
    )
    memory = Limit(0.004, "memory of the mean over that of the scale: 0.01 and more in published recipes")
    long_step = Limit(1.2, "root mean square of a step over the rate; the first of all is 1")
    times = Limit(2, "long steps: one may be of an odd batch")
    lasts = Limit.memory(10, "steps; spikes of the loss come one to eight steps after long updates")
    leap = Limit(2.718, "times the level of the loss before the long steps")

    def __init__(self) -> None:
        self._ratio = math.nan  # memory of the mean over that of the scale
        self._calm_level = math.nan  # of the loss at the latest step that was no longer than the rate
        self._long: deque[tuple[int, float]] = deque(maxlen=int(self.times))

    @property
    def is_calm(self) -> bool:
        return not self._ratio < self.memory and not self.is_open

    def observe(self, view: FrameView) -> Judgement | None:
        self._ratio = view.frame.scalars.get("optimizer_memory_ratio", self._ratio)
        loss, rate = view.loss, view.scalar("lr")
        if not self._ratio < self.memory or view.skipped or loss is None or not loss.positive or loss.actors > 1:
            return self.stay()
        if view.row("update_norm") is not None and rate > 0:
            matrices = matrices_of(view.layout)
            sizes = np.array([view.layout.layers[int(i)].parameter_count for i in matrices.ids.tolist()], np.float64)
            size = middle(matrices.values(view, "update_norm") / np.sqrt(np.maximum(sizes, 1.0)) / rate)
            if size > self.long_step:
                self._long.append((view.step, size))
            elif not self._is_recent(view.step):
                self._calm_level = loss.level
        if not self._is_recent(view.step):
            return self.end()
        is_often = len(self._long) == self.times and view.step - self._long[0][0] <= self.lasts
        if not is_often or not loss.value > self.leap * self._calm_level:
            return self.stay()
        return self.hold(None, lambda: self._describe(loss.value))

    def _is_recent(self, step: int) -> bool:
        return bool(self._long) and step - self._long[-1][0] <= self.lasts

    def _describe(self, value: float) -> Judgement:
        longest = max(size for _, size in self._long)
        how = "averaging time of the first moment over that of the second; 0.01 is usual"
        evidence = (
            Evidence("optimizer_memory_ratio", None, self._ratio, 0.01, how),
            Evidence("update_norm", None, longest, 1.0, "longest update per element, over the learning rate"),
            Evidence("loss", None, value, self._calm_level, "since then, and before"),
        )
        summary = (
            "Adam's second moment (beta2) averages too long to follow the gradients: updates are up to "
            f"{longest:.1f}× the learning rate, and the loss jumped."
        )
        return Judgement(Severity.MODERATE, (), self._long[0][0], 0.85, summary, evidence)
