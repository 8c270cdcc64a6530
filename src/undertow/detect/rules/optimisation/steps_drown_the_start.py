"""OPT007: steps so long that soon the weights are made of little else, although the loss falls."""

import numpy as np

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, LayerValues, Limit, Stage
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import LOWER_LEARNING_RATE, WARM_UP
from undertow.schema import Evidence, Severity


class StepsDrownTheStart(Condition):
    """Every step is a large part of what the weights were at the start, and they have grown to many times that.

    What it sees: The length of every update over that of the weight as training began (or over the usual length, if
        that is more), in the middle of all weight matrices: a tenth or more, over at least a quarter of the run, while
        the weights have grown fivefold. The loss falls, but more than a fifth of it is left.
    Why it is bad: The sum of such steps is a random walk: it makes weights larger, not better. The loss falls and stays
        well above where a lower learning rate takes it, often at twice that.
    When it is wrong: Small models bear steps of this size where the task is easy: a loss that is nearly gone is not
        reported, and one that does not fall is UPD001 or OPT001. Over many thousand steps weights grow tenfold in
        health, in steps a hundred times as short. Weights that begin at zero or tiny are measured by the usual length.
        Optimizers in turn and losses below zero are left out.
    References: Karpathy, CS231n notes, "Ratio of weights:updates".
        Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023 (arXiv
        2309.14322).
    """

    code, variant = "OPT007", "steps-drown-the-start"
    stage = Stage.OPTIMIZER
    pace, is_of_one_training = ("update", 3), True
    meaning = "The learning rate keeps the loss well above what this model could reach"
    remedies = (LOWER_LEARNING_RATE, WARM_UP)

    step = Limit(0.1, "of the weight at the start, per step; healthy trainings end below 0.055, fast ones below 0.08")
    long = Limit(0.05, "of the weight at the start: from the first of such steps in a row it is dated")
    grown = Limit(5.0, "times the weight at the start; healthy 3.5 at most where much of the loss is left")
    remaining = Limit(0.2, "of the first losses: where less is left, the model bears its rate")
    least = Limit.chance(4, "measured steps in a row")
    share = Limit(0.25, "of the steps so far, for these")
    judged_after = Limit.learning(60, "losses: until then a high rate that soon falls looks the same")

    _start = LayerValues(np.float64, np.nan)  # norm of each weight when first measured

    def __init__(self) -> None:
        self._long, self._grown = Consecutive(), Consecutive()  # measured steps that are long, and with grown weights
        self._rate = np.nan

    def observe(self, view: FrameView) -> Judgement | None:
        rate, matrices, loss = view.scalar("lr"), matrices_of(view.layout), view.loss
        self._rate = rate if rate > 0 else self._rate
        if view.skipped or not len(matrices) or view.ids("update") is None:
            return None
        norms, updates = matrices.values(view, "weight_norm"), matrices.values(view, "update_norm")
        unknown = np.isnan(self._start[matrices.ids])
        before = updates / matrices.values(view, "update_ratio")  # a first step may be longer than the weight
        self._start[matrices.ids[unknown]] = np.where(np.isfinite(before), before, norms)[unknown]
        start = np.fmax(self._start[matrices.ids], matrices.usual_norm)
        step, growth = middle(updates / start), middle(norms / start)
        if not np.isfinite(step + growth):
            return self.stay()
        self._long.follow(step > self.long, view.step)
        grown = self._grown.follow(step > self.step and growth > self.grown, view.step)
        if not grown or loss is None or loss.actors > 1 or not has_learnt(loss) or not loss.remaining > self.remaining:
            return self.end()
        lasted = view.step - self._grown.since
        if grown < self.least or lasted < self.share * view.step or loss.seen < self.judged_after:
            return self.stay()
        return self.hold(None, lambda: self._describe(view, loss, step, growth))

    def _describe(self, view: FrameView, loss: Loss, step: float, growth: float) -> Judgement:
        evidence = (
            Evidence("update_ratio", None, step, 0.01, "update over the weight as it began, middle of all matrices"),
            Evidence("weight_norm", None, growth, 1.0, "times the weight as it began, middle of all matrices"),
            Evidence("lr", None, self._rate, None, f"learning rate at step {view.step}"),
            Evidence("loss", None, loss.level, loss.start, "the loss now, and at the start"),
        )
        summary = (
            f"The learning rate of {self._rate:.3g} is too high: every step is {step:.0%} of what the weights were at "
            f"the start (1% is usual), and they have grown to {growth:.1f} times that: the loss falls less far than it "
            "could."
        )
        return Judgement(Severity.MODERATE, (), self._long.since, 0.75, summary, evidence)
