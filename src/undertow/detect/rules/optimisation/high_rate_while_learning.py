"""OPT007: the learning rate is too high although the loss falls: most of every step is undone by the next ones."""

from collections import deque
from math import hypot
from statistics import median

import numpy as np

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, LayerValues, Limit, Stage
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import LOWER_LEARNING_RATE, WARM_UP
from undertow.schema import Evidence, LossKind, Severity


class HighRateWhileLearning(Condition):
    """Long updates that mostly cancel each other have made the weights many times larger, while the loss still falls.

    What it sees: The norm of every update over that of the initial weight (or over the usual norm, if that is more),
        for the median weight matrix: a tenth or more, over at least a quarter of the run. Meanwhile the weights have
        grown fivefold, by less than half of the length of these updates. The loss falls, but more than a fifth of it is
        left.
    Why it is bad: Updates that cancel are a random walk: it makes weights larger, not better. The loss stays well above
        what a lower learning rate reaches, often at twice that.
    When it is wrong: Updates that agree, towards targets far away, are long for a reason and are not reported; nor is a
        loss that is nearly gone, is below zero, is of an unknown kind, or has targets that grow (bootstrapped values):
        how much of it is left says nothing. A loss that does not fall is UPD001 or OPT001. Weights that begin at
        zero or tiny are measured by the usual norm. Optimizers in turn are left out.
    References: Karpathy, CS231n notes, "Ratio of weights:updates".
        Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023 (arXiv
        2309.14322).
    """

    code, variant = "OPT007", "too-high-while-learning"
    places = ("rate",)
    stage = Stage.OPTIMIZER
    pace, is_of_one_training = ("update", 3), True
    meaning = "The learning rate keeps the loss well above what this model could reach"
    remedies = (LOWER_LEARNING_RATE, WARM_UP)

    step = Limit(0.1, "of the initial weight per step, in the mean; healthy ones end below 0.055, fast ones below 0.08")
    long = Limit(0.05, "of the initial weight: from the first of such steps in a row it is dated")
    grown = Limit(5.0, "times the initial weight; healthy 3.5 at most where much of the loss is left")
    straight = Limit(0.5, "of the length of these steps, for what the weights grew by; 1 where all point the same way")
    remaining = Limit(0.2, "of the first losses: where less is left, the model learns at this rate")
    targets = Limit(1.5, "times the size of the first targets: those that grow move with the model")
    least = Limit.chance(4, "measured steps in a row")
    share = Limit(0.25, "of the steps so far, for these")
    judged_after = Limit.learning(60, "losses: until then a high rate that soon falls looks the same")

    _start = LayerValues(np.float64, np.nan)  # norm of each weight when first measured

    def __init__(self) -> None:
        self._long, self._grown = Consecutive(), Consecutive()  # measured steps that are long, and with grown weights
        self._growth_before = self._path = 0.0  # where that row began, and the length of all its steps
        self._last_step = 0
        self._rate = np.nan
        self._is_distance = False  # the loss is of a kind that is zero where predictions are right
        self._first_targets: list[float] = []
        self._targets: deque[float] = deque(maxlen=3)

    def observe(self, view: FrameView) -> Judgement | None:
        rate, matrices, loss = view.scalar("lr"), matrices_of(view.layout), view.loss
        self._rate = rate if rate > 0 else self._rate
        self._follow_targets(view)
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
        grown = self._grown.follow(step > self.long and growth > self.grown, view.step)
        if grown <= 1:
            self._growth_before, self._path = growth, 0.0
        else:
            self._path += step * (view.step - self._last_step)
        self._last_step = view.step
        if not grown or loss is None or not self._falls_too_little(loss):
            return self.end()
        lasted = view.step - self._grown.since
        if grown < self.least or lasted < self.share * view.step or loss.seen < self.judged_after:
            return self.stay()
        step, kept = self._path / lasted, abs(growth - self._growth_before) / self._path
        if step < self.step:
            return self.end()
        if kept > self.straight:
            return self.stay()
        return self.hold(None, lambda: self._describe(view, loss, step, growth, kept))

    def _follow_targets(self, view: FrameView) -> None:
        kind, size = view.scalar("loss_kind"), hypot(view.scalar("target_mean"), view.scalar("target_std"))
        if kind == kind:
            self._is_distance = kind != LossKind.UNKNOWN and view.scalar("loss_factor") > 0
        if size == size:
            self._targets.append(size)
            if len(self._first_targets) < (self._targets.maxlen or 0):
                self._first_targets.append(size)

    def _falls_too_little(self, loss: Loss) -> bool:
        """It has fallen, and what is left of it can be compared with what it was."""
        if not self._is_distance or loss.actors > 1 or not has_learnt(loss) or not loss.remaining > self.remaining:
            return False
        return not self._targets or median(self._targets) <= self.targets * median(self._first_targets)

    def _describe(self, view: FrameView, loss: Loss, step: float, growth: float, kept: float) -> Judgement:
        how = f"times the initial weight; {kept:.0%} of the update length is kept"
        evidence = (
            Evidence("update_ratio", None, step, 0.01, "update over the initial weight, median of all matrices"),
            Evidence("weight_norm", None, growth, 1.0, how),
            Evidence("lr", None, self._rate, None, f"learning rate at step {view.step}"),
            Evidence("loss", None, loss.level, loss.start, "loss now, and at the start"),
        )
        summary = (
            f"The learning rate of {self._rate:.3g} is too high: updates are {step:.0%} of the initial weights (1% is "
            f"usual) and mostly cancel; the weights grew {growth:.1f}-fold."
        )
        return Judgement(Severity.MODERATE, (), self._long.since, 0.75, summary, evidence)
