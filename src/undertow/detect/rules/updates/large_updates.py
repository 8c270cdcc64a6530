"""UPD001: steps so large that they undo what was learnt."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.between_steps import BetweenSteps
from undertow.detect.features.long_first_steps import LongFirstSteps
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.parameter_groups import FastMembers
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.remedies import (
    CLIP_GRADIENTS,
    LOWER_LEARNING_RATE,
    LOWER_THE_GROUP_RATE,
    WARM_UP,
)
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Finding, Remedy, Severity


class LargeUpdates(Condition):
    """Steps are so large that they undo what was learnt.

    What it sees: The length of every update over the length of the weight it changes, for the median weight matrix.
        Reported when steps of a tenth of the weight or more are followed by losses far above the one they started from
        (one such loss, where the next is not finite), or when the weights have travelled twice their own length in
        steps of a twentieth or more and the loss is no better for it, or most units, which responded at the start, are
        saturated since. The layers of a parameter group are named when
        its learning rate is thirty times that of the others.
    Why it is bad: A gradient is valid near the weight it was taken at. Steps of this size jump over what they aim at:
        the loss rises or bounces, ReLU units die, softmaxes and tanhs saturate, and often nothing recovers. The
        learning rate is the first suspect; losses summed over micro-batches, unscaled inputs and gradients that are
        never cleared do the same.
    When it is wrong: The first steps of small networks, of adapters that start at zero, and of second-order methods are
        as large in healthy runs; there the loss falls, and it is not reported. Weights shorter than usual are measured
        by the usual length. Optimizers that step in turn, as those of a GAN do, are not judged: their losses need not
        fall.
    References: Karpathy, CS231n course notes, "Babysitting the learning process": updates of about a thousandth of
        the weight.
        Bengio, "Practical recommendations for gradient-based training of deep architectures", 2012 (arXiv 1206.5533).
    """

    code, variant, formerly = "UPD001", "large-updates", "steps"
    places = ("rate",)
    stage = Stage.STEP
    pace, is_of_one_training = ("update", 3), True
    meaning = "The weights change so much in one step that they forget what earlier steps had learned"
    remedies = (LOWER_LEARNING_RATE, WARM_UP, CLIP_GRADIENTS)
    large = Limit(0.05, "of the weight per step; 0.001 is usual")
    burst = Limit(0.1, "of the weight per step: such a step can undo many")
    travel = Limit(2.0, "lengths of the weight: nothing is left of what it was")
    shock = Limit(1.6, "times the loss before; at the edge of stability it jumps to 1.5 times in health")
    shock_deviations = Limit(8.0, "deviations of the loss, where it can be negative")
    shocks = Limit(3, "such losses: one may be a bad batch")
    undone = Limit(0.5, "of what was learnt before: batches that differ are no shock while most of it is kept")
    saturated = Limit(0.5, "of the outputs of the median function that saturates: the units were thrown to its ends…")
    responding = Limit(0.1, "…and responded before these steps")
    wait = Limit.learning(60, "steps: with small batches a loss falls by less than its noise before")
    memory = Limit.memory(10, "steps for which a large step can still be the cause")

    def __init__(self) -> None:
        self._fast, self._long_start, self._between = FastMembers(), LongFirstSteps(), BetweenSteps()
        self._since = 0
        self._speed = self._fastest = 0.0
        self._travelled = 0.0  # in lengths of the weight, since steps became large
        self._last_step = self._last_large = -1  # the latest with a measured update, and with a large one
        self._last_burst = -self.memory - 1  # long ago
        self._base: float | None = None  # the level of the loss when steps became large
        self._calm: float | None = None  # the level of the loss at the latest step that was not large
        self._recent: deque[tuple[int, float]] = deque(maxlen=16)  # losses, for steps whose updates were not measured
        self._shocks = 0  # losses far above the base since then
        self._flat_first = self._flat = math.nan  # share of saturated outputs, at first and now

    def observe(self, view: FrameView) -> Judgement | None:
        if view.loss is not None:
            self._recent.append((view.loss.step, view.loss.value))
        if view.skipped:
            return None
        if self._is_rewritten(view):  # then what the loss does from here on is not only the steps' doing
            self._base, self._shocks = None, 0
            self._recent.clear()
        self._follow_units(view)
        self._fast.observe(view)
        self._long_start.observe(view)
        if view.ids("update") is None:
            if self._base is not None and 0 < view.step - self._last_step <= self.memory:
                # Not measured: a part of the step measured last. Weights grow under large steps, so they shorten.
                self._travelled += 0.25 * self._speed
        elif not self._long_start.covers(view.step):
            ratios = matrices_of(view.layout).update_ratios(view)
            if np.isfinite(ratios).any():
                self._move(view, middle(ratios))
        return self.stay() if self._base is None else self._judge(view, self._base)

    def _follow_units(self, view: FrameView) -> None:
        shares = view.row("activation_saturated_fraction")
        if shares is not None and not np.isnan(shares).all():
            self._flat = middle(shares.astype(np.float64))
            self._flat_first = self._flat if math.isnan(self._flat_first) else self._flat_first

    def _has_thrown_units(self, view: FrameView) -> bool:
        was_alive, lasts = self._flat_first < self.responding, view.step - self._since >= self.memory
        return was_alive and self._flat > self.saturated and self._travelled >= self.travel and lasts

    def _is_rewritten(self, view: FrameView) -> bool:
        """Whether the program itself has changed the weights between two steps, as by bringing them to one norm."""
        change, ids = self._between.observe(view), view.ids("weight")
        if change is None or ids is None:
            return False
        return middle(change[np.isin(ids, matrices_of(view.layout).ids)]) >= self.large

    def _move(self, view: FrameView, speed: float) -> None:
        if speed >= self.large:
            if self._base is None and view.loss is not None:
                # The loss of this very step was computed before its update.
                self._base = view.loss.value if self._calm is None else self._calm
                self._since, self._travelled, self._fastest, self._shocks = view.step, 0.0, 0.0, 0
                for step, value in self._recent:  # between the last measured update, which was calm, and this one
                    if self._last_step < step < view.step:
                        self._shocks += self._is_shocking(view.loss, value)
            self._last_large = view.step
            self._travelled += speed
            self._fastest = max(self._fastest, speed)
            if speed >= self.burst:
                self._last_burst = view.step
        elif not self.is_open:
            if view.loss is not None:
                self._calm = view.loss.level
            if view.step - self._last_large > self.memory:
                self._base = None
        self._speed, self._last_step = speed, view.step

    def _is_shocking(self, loss: Loss, value: float) -> bool:
        base = loss.best if self._base is None else min(self._base, loss.best)
        if loss.positive:
            undone = base + self.undone * max(loss.start - base, 0.0)
            return value > max(self.shock * base, undone)
        return value > base + self.shock_deviations * loss.noise

    def _judge(self, view: FrameView, base: float) -> Judgement | None:
        loss, burst = view.loss, view.step - self._last_burst <= self.memory
        if loss is None and burst and self._shocks and "loss" in view.frame.scalars:  # …and then not even a number
            return self.hold(True, lambda: self._describe(view, view.scalar("loss"), base, True))
        if loss is None or loss.actors > 1:  # losses of adversaries rise in health
            return self.stay()
        if burst and (view.step > self._since or self._shocks):
            self._shocks += self._is_shocking(loss, loss.value)
        shocked = burst and self._shocks >= self.shocks
        if shocked or self._leads_nowhere(view, loss, base):
            value = loss.value if shocked else loss.level
            return self.hold(True, lambda: self._describe(view, value, base, shocked))
        if not self.is_open and self._has_thrown_units(view) and not has_learnt(loss):
            return self.hold(True, lambda: self._describe_units(loss.value, base))
        return self.stay() if self.is_open and loss.level >= base - loss.noise else self.end()

    def _leads_nowhere(self, view: FrameView, loss: Loss, base: float) -> bool:
        lasted = view.step - self._since
        if not loss.positive or self._travelled < self.travel or lasted < self.memory:
            return False
        # Where nothing is learnt yet, batch noise hides what is: for a while the loss must be above it. After progress,
        # a loss that wavers at the edge of stability is healthy; one that has lost it again is not.
        bound = base if lasted >= self.wait else base + loss.noise
        bound = base * self.shock if has_learnt(loss) else bound
        return loss.level >= bound and all(value >= bound for _, value in list(self._recent)[-3:])

    def _describe(self, view: FrameView, loss: float, base: float, shocked: bool) -> Judgement:
        evidence = (
            Evidence("update_ratio", None, self._fastest, 1e-3,
                     f"largest update over its weight since step {self._since}, median of all matrices"),
            Evidence("update_ratio", None, self._travelled, None,
                     f"lengths of the weight travelled in steps of a twentieth or more since step {self._since}"),
            Evidence("loss", None, loss, base,
                     f"at step {view.step}, and before these steps"),
        )  # fmt: skip
        what = "and the loss jumped" if shocked else "and the loss has not improved"
        summary = f"Updates are up to {self._fastest:.2g} times the size of the weights (0.001 is usual), {what}."
        layers = self._fast.members  # otherwise the learning rate is at fault, no layer of it
        if layers:
            whose = name_layers(view.layout, layers)
            summary = f"{summary[:-1]}; the learning rate of {whose} is far above that of the others."
        return Judgement(Severity.SEVERE, layers, self._since, 0.9 if shocked else 0.8, summary, evidence)

    def _describe_units(self, loss: float, base: float) -> Judgement:
        how = "share of saturated outputs of the functions that saturate, median; now, and at the start"
        evidence = (
            Evidence("update_ratio", None, self._fastest, 1e-3, f"largest update over its weight since {self._since}"),
            Evidence("activation_saturated_fraction", None, self._flat, self._flat_first, how),
            Evidence("loss", None, loss, base, "now, and before these steps"),
        )
        summary = (
            f"Updates are up to {self._fastest:.2g} times the size of the weights (0.001 is usual), and units are "
            f"thrown to where they do not respond: {self._flat:.0%} of their outputs are saturated."
        )
        return Judgement(Severity.SEVERE, self._fast.members, self._since, 0.85, summary, evidence)

    @classmethod
    def remedies_for(cls, finding: Finding) -> Sequence[Remedy]:
        return (LOWER_THE_GROUP_RATE,) if finding.layers else cls.remedies  # a group that runs ahead
