"""OPT008: a momentum that hardly forgets."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage, having
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of
from undertow.detect.features.remedies import USUAL_MOMENTUM
from undertow.schema import Evidence, Severity


class MomentumTooLarge(Condition):
    """The momentum carries gradients along for hundreds of steps.

    What it sees: A momentum (Adam's first beta) of 0.995 or more while the loss does not fall, or of 0.998 or more.
    Why it is bad: The steps keep going for hundreds of steps after the gradient has turned.
    When it is wrong: Between 0.995 and 0.998 a loss that falls, or of which nothing is left, is not reported.
    References: Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013.
    """

    code, variant, formerly = "OPT008", "momentum-too-large", "momentum"
    stage, is_exact, is_standing = Stage.PROGRAM, True, True
    pace = ("weight", 5)
    wakes_on = having("optimizer")
    meaning = "The steps follow gradients of hundreds of steps ago"
    remedies = (USUAL_MOMENTUM,)
    large = Limit(0.995, "it remembers 200 steps")
    absurd = Limit(0.998, "no published recipe comes near it")
    absurd_after = Limit(5, "losses: to be sure of the setting, which is read at every one")
    judged_after = Limit(40, "losses: a fifth of what such a momentum remembers")
    remaining = Limit(0.05, "of the first losses: where less is left, all is learnt")

    def __init__(self) -> None:
        self._momentum = 0.0

    @property
    def is_calm(self) -> bool:
        return self._momentum < self.large and not self.is_open

    def observe(self, view: FrameView) -> Judgement | None:
        if view.ids("optimizer") is not None and not view.skipped:
            momenta = matrices_of(view.layout).values(view, "optimizer_momentum")
            if not np.isnan(momenta).all():
                self._momentum = float(np.nanmax(momenta))
        if self._momentum < self.large:
            return self.end()
        loss = view.loss
        if loss is None or loss.actors > 1:
            return self.stay()
        is_absurd = self._momentum >= self.absurd and loss.seen >= self.absurd_after
        is_stuck = not loss.falling and not loss.remaining < self.remaining and loss.seen >= self.judged_after
        if not is_stuck and not is_absurd:
            return self.stay()
        return self.hold(is_stuck, lambda: self._describe(loss, is_stuck))

    def _describe(self, loss: Loss, is_stuck: bool) -> Judgement:
        memory = f"{1 / (1 - self._momentum):,.0f} steps"
        evidence = (
            Evidence("optimizer_momentum", None, self._momentum, 0.9, f"it remembers {memory}"),
            Evidence("loss", None, loss.level, loss.best, "level now, and at its best"),
        )
        harm = "and the loss does not fall" if is_stuck else "long after it has turned"
        summary = f"A momentum of {self._momentum:g} (0.9 is usual) carries every gradient along for {memory}, {harm}."
        return Judgement(Severity.MODERATE, (), loss.best_step if is_stuck else 0, 0.8, summary, evidence)
