"""OPT008: a momentum that hardly forgets, or Adam's betas exchanged."""

import math

import numpy as np

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.remedies import USUAL_MOMENTUM
from undertow.schema import Evidence, Severity


class MomentumTooLarge(Condition):
    """The momentum averages gradients over hundreds of steps, or over far more than Adam's second moment does.

    What it sees: A momentum (Adam's first beta) of 0.995 or more while the loss does not fall, or of 0.998 or more; or
        a first beta of 0.98 or more whose memory is five times that of the second: the two look swapped.
    Why it is bad: The steps keep going for hundreds of steps after the gradient has turned. A scale that forgets first
        makes them as large as the latest gradient is small.
    When it is wrong: Between 0.995 and 0.998 a loss that falls, or of which nothing is left, is not reported. In
        published recipes the mean remembers at most as long as the scale.
    References: Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013.
        Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014 (arXiv 1412.6980).
    """

    code, variant, formerly = "OPT008", "momentum-too-large", "momentum exchanged betas-exchanged"
    places = ("setting", "optimizer")
    stage, is_exact, is_standing, builds_up = Stage.PROGRAM, True, True, True
    pace = ("weight", 5)
    wakes_on = having("optimizer")
    meaning = "The steps follow gradients of hundreds of steps ago"
    remedies = (USUAL_MOMENTUM,)
    large = Limit(0.995, "it remembers 200 steps")
    absurd = Limit(0.998, "no published recipe comes near it")
    absurd_after = Limit.start(5, "losses: to be sure of the setting, which is read at every one")
    judged_after = Limit(0.2, "of what the momentum remembers, in losses")
    remaining = Limit(0.05, "of the first losses: where less is left, all is learnt")
    large_if_exchanged = Limit(0.98, "first beta: shorter memories do no harm")
    memory = Limit(5.0, "memory of the mean over that of the scale; at most 1 in published recipes")

    def __init__(self) -> None:
        self._momentum, self._memory = 0.0, math.nan  # and memory of the mean over that of the scale
        self._large = Consecutive()  # looks at such a setting

    @property
    def is_calm(self) -> bool:
        return self._momentum < self.large_if_exchanged and not self.is_open

    def observe(self, view: FrameView) -> Judgement | None:
        if view.ids("optimizer") is not None and not view.skipped:
            momenta = matrices_of(view.layout).values(view, "optimizer_momentum")
            if not np.isnan(momenta).all():
                self._momentum = float(np.nanmax(momenta))
                self._large.follow(self._momentum >= self.large_if_exchanged, view.step)
            self._memory = view.frame.scalars.get("optimizer_memory_ratio", self._memory)
        if self._momentum >= self.large_if_exchanged and self._memory > self.memory:
            return self.hold("exchanged", self._describe_exchanged)
        if self._momentum < self.large:
            return self.end()
        loss = view.loss
        if loss is None or loss.actors > 1:
            return self.stay()
        is_absurd = self._momentum >= self.absurd and loss.seen >= self.absurd_after
        memory = round(1 / (1 - self._momentum)) if self._momentum < 1 else math.inf  # steps
        is_stuck = not loss.falling and not loss.remaining < self.remaining and loss.seen >= self.judged_after * memory
        if not is_stuck and not is_absurd:
            return self.stay()
        remembers = f"{memory:,.0f} steps"
        evidence = (
            Evidence("optimizer_momentum", None, self._momentum, 0.9, f"it averages over {remembers}"),
            Evidence("loss", None, loss.level, loss.best, "level now, and at its best"),
        )
        harm = "the loss does not fall" if is_stuck else "it pushes on after the gradient has turned"
        summary = f"A momentum of {self._momentum:g} (0.9 is usual) averages gradients over {remembers}: {harm}."
        since = loss.best_step if is_stuck else self._large.since
        return self.hold(is_stuck, lambda: Judgement(Severity.MODERATE, (), since, 0.8, summary, evidence))

    def _describe_exchanged(self) -> Judgement:
        first = self._momentum
        second = 1.0 - self._memory * (1.0 - first)
        how = "averaging time of the first moment over that of the second"
        evidence = (
            Evidence("optimizer_momentum", None, first, 0.9, f"Adam's first beta; its second one is {second:.3g}"),
            Evidence("optimizer_memory_ratio", None, self._memory, 1.0, how),
        )
        summary = (
            f"Adam's betas of {first:.3g} and {second:.3g} look swapped: the first moment averages over "
            f"{self._memory:.0f}× as many steps as the second."
        )
        return Judgement(Severity.SEVERE, (), self._large.since, 0.95, summary, evidence)
