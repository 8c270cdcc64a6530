"""A second moment that remembers too long: when gradients grow, Adam's steps become longer than its rate."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class LongMemory:
    """With the usual memory a step is about as long as the rate for each number, or shorter. One that remembers ten
    times as long divides by what gradients were long ago.
    """

    def __init__(self) -> None:
        self._condition = Condition("memory")
        self._ratio = math.nan  # memory of the mean over that of the scale
        self._calm = math.nan  # the level of the loss at the latest step that was no longer than the rate
        self._long: deque[tuple[int, float]] = deque(maxlen=limit.MEMORY_STEPS)

    @property
    def resting(self) -> bool:
        """The optimizer's memory is as usual, so that nothing is followed."""
        return not self._ratio < limit.MEMORY_LONG and not self._condition.is_open

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        self._ratio = view.frame.scalars.get("optimizer_memory_ratio", self._ratio)
        loss, rate = view.loss, view.scalar("lr")
        if not self._ratio < limit.MEMORY_LONG or view.skipped or loss is None or not loss.positive or loss.actors > 1:
            return self._condition.stay()
        if view.row("update_norm") is not None and rate > 0:
            matrices = matrices_of(view.layout)
            sizes = np.array([view.layout.layers[int(i)].parameter_count for i in matrices.ids.tolist()], np.float64)
            size = middle(matrices.values(view, "update_norm") / np.sqrt(np.maximum(sizes, 1.0)) / rate)
            if size > limit.MEMORY_STEP:
                self._long.append((view.step, size))
            elif not self._long or view.step - self._long[-1][0] > limit.LAG_LASTS:
                self._calm = loss.level
        if not self._long or view.step - self._long[-1][0] > limit.LAG_LASTS:
            return self._condition.end()
        often = len(self._long) == limit.MEMORY_STEPS and view.step - self._long[0][0] <= limit.LAG_LASTS
        if not often or not loss.value > limit.SPIKE_RATIO * self._calm:
            return self._condition.stay()
        return self._condition.hold(None, lambda: self._verdict(loss.value))

    def _verdict(self, value: float) -> Verdict:
        longest = max(size for _, size in self._long)
        how = "memory of the mean over that of the scale; a hundredth is usual"
        evidence = (
            Evidence("optimizer_memory_ratio", None, self._ratio, 0.01, how),
            Evidence("update_norm", None, longest, 1.0, "longest step for each number, over the learning rate"),
            Evidence("loss", None, value, self._calm, "since then, and before"),
        )
        summary = (
            "The second moment remembers so long (betas) that gradients which grew are divided by what they were long "
            f"ago: steps are up to {longest:.1f} times the learning rate, and the loss leapt."
        )
        return Verdict("memory", True, Severity.MODERATE, (), self._long[0][0], 0.85, summary, evidence)
