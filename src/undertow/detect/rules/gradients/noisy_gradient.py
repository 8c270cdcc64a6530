"""GRD008: the gradient is nearly all noise."""

import math
from collections import deque

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, where_scalar
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import LOWER_LEARNING_RATE, USE_LARGER_BATCHES
from undertow.schema import Evidence, Severity

_LEAST_BATCHES = 4


class NoisyGradient(Condition):
    """The gradient is nearly all noise.

    What it sees: How much the gradients of the micro-batches of one step differ, over the length of their mean.
        Reported when, for the median weight matrix over sixteen measured steps, the noise left after averaging is
        more than eight times the signal, and the loss has made no progress. It needs four micro-batches or more, from
        accumulation or from ranks; without them the noise of a step cannot be known.
    Why it is bad: The weights go for a random walk. Either the batches are far too small for this problem, or there is
        no signal to find: labels that do not belong to their inputs look like this.
    When it is wrong: Late in training, when little is left to learn, noise dominates in healthy runs, too; that
        is not reported. Two or three backward passes per step are mostly different losses, and do not count. Rewards,
        and targets that follow weakly from their inputs, are as noisy in healthy runs: this is a remark, never an
        alarm.
    References: McCandlish et al., "An Empirical Model of Large-Batch Training", 2018 (arXiv 1812.06162): the noise
        scale.
    """

    code, variant, formerly = "GRD008", "noisy-gradient", "noise"
    places = ("loader",)
    stage, is_vague = Stage.COURSE, True
    remedies = (USE_LARGER_BATCHES, LOWER_LEARNING_RATE)
    needs = frozenset({"gradient"})
    wakes_on = where_scalar("backward_count", lambda count: count >= _LEAST_BATCHES) | where_scalar(
        "gradient_batches", lambda count: count >= _LEAST_BATCHES
    )
    is_of_one_training = True

    least_batches = Limit(_LEAST_BATCHES, "micro-batches of a step: two or three are mostly different losses")
    noise = Limit(8.0, "noise over signal of the averaged gradient; healthy accumulation of tiny batches: 2.6")
    window = Limit.sample(16, "measured steps, of which the median counts: one estimate is as noisy as the gradient")
    patience = Limit.learning(40, "steps: with noise like that, even a healthy loss needs as many to move")

    def __init__(self) -> None:
        self._latest: deque[tuple[int, float]] = deque(maxlen=int(self.window))  # (step, noise over signal)
        self._since: int | None = None

    def observe(self, view: FrameView) -> Judgement | None:
        batches = view.scalar("gradient_batches")  # of all ranks, where there are several
        if math.isnan(batches):
            batches = view.scalar("backward_count")
        matrices = matrices_of(view.layout)
        if view.skipped or view.ids("gradient") is None or not batches >= self.least_batches or not len(matrices):
            return None
        noise = matrices.middle(view, "gradient_noise_scale") / batches
        if math.isnan(noise):
            return self.stay()
        self._latest.append((view.step, noise))
        if len(self._latest) < self.window:
            return None
        usual = sorted(value for _, value in self._latest)[len(self._latest) // 2]
        if usual < self.noise or view.loss is None or has_learnt(view.loss):
            self._since = None
            return self.end()
        since = self._since = self._latest[0][0] if self._since is None else self._since
        return (
            None if view.step - since < self.patience else self.hold(True, lambda: self._describe(view, since, usual))
        )

    def _describe(self, view: FrameView, since: int, usual: float) -> Judgement:
        how = "noise over signal of the averaged gradient, median of all matrices and measured steps"
        evidence = [Evidence("gradient_noise_scale", None, usual, 1.0, how)]
        if view.loss is not None:
            evidence.append(Evidence("loss", None, view.loss.level, view.loss.start, "loss now, and at the start"))
        summary = "The gradient is nearly all noise, and the loss has not moved since the start."
        # Batch size or data are at fault, no layer.
        return Judgement(Severity.MILD, (), since, 0.6, summary, tuple(evidence))
