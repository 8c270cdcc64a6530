"""GRD008."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.progress import has_learnt
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class NoisyGradient:
    """The gradient is nearly all noise.

    What it sees
    ------------
    How much the gradients of the micro-batches of one step differ, over the length of their mean. It speaks when,
    in the middle of all weight matrices and of sixteen measured steps, what is left of the noise after averaging is
    more than eight times the signal, and the loss has made no progress since the start. It needs four micro-batches or
    more, from gradient accumulation or from ranks that train in parallel; without them, the noise of a step cannot be
    known and nothing is said.

    Why it is bad
    -------------
    The weights go for a random walk. Either the batches are far too small for this problem, or there is no signal to
    find: labels that do not belong to their inputs look like this.

    When it is wrong
    ----------------
    Late in training noise dominates in health, when the loss has fallen and little is left to learn; nothing is said
    then. Two or three backward passes per step are mostly different losses, not micro-batches, and do not count.
    Rewards, and targets that follow from their inputs weakly, are as noisy in health: this is a remark, never an alarm.

    References
    ----------
    McCandlish et al., "An Empirical Model of Large-Batch Training", 2018 (arXiv 1812.06162): the noise scale.
    """

    code: ClassVar[str] = "GRD008"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._condition = Condition("noise")
        self._latest: deque[tuple[int, float]] = deque(maxlen=thresholds.NOISE_FRAMES)  # (step, noise over signal)
        self._since: int | None = None

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return True  # nothing is said of other frames, whatever is open

    def news(self, batch: FrameBatch) -> Flags:
        passes = batch.scalar("backward_count") >= thresholds.NOISE_LEAST_BATCHES
        return passes | (batch.scalar("gradient_batches") >= thresholds.NOISE_LEAST_BATCHES)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        batches = view.scalar("gradient_batches")  # of all ranks, where there are several
        if math.isnan(batches):
            batches = view.scalar("backward_count")
        if view.skipped or view.ids("gradient") is None or not batches >= thresholds.NOISE_LEAST_BATCHES:
            return ()
        matrices = matrices_of(view.layout)
        if not len(matrices):
            return ()
        noise = middle(matrices.values(view, "gradient_noise_scale")) / batches
        if math.isnan(noise):
            return self._condition.stay()
        self._latest.append((view.step, noise))
        if len(self._latest) < thresholds.NOISE_FRAMES:
            return ()
        usual = sorted(value for _, value in self._latest)[len(self._latest) // 2]
        if usual < thresholds.NOISE_OVER_SIGNAL or view.loss is None or has_learnt(view.loss):
            self._since = None
            return self._condition.end()
        since = self._since = self._latest[0][0] if self._since is None else self._since
        if view.step - since < thresholds.NOISE_STEPS:
            return ()
        return self._condition.hold(True, lambda: self._verdict(view, since, usual))

    def _verdict(self, view: FrameView, since: int, usual: float) -> Verdict:
        evidence = [
            Evidence("gradient_noise_scale", None, usual, 1.0,
                     "noise over signal of the averaged gradient, in the middle of all matrices and measured steps")
        ]  # fmt: skip
        if view.loss is not None:
            evidence.append(Evidence("loss", None, view.loss.level, view.loss.start, "the loss, beside its start"))
        summary = "The gradient is nearly all noise, and the loss has not moved since the start."
        return Verdict(
            self._condition.key, True, Severity.MILD, (), since, 0.6, summary, tuple(evidence)
        )  # batch size or data are at fault, no layer
