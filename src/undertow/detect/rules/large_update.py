"""UPD001."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import LayerStreak
from undertow.detect.engine.view import FrameView
from undertow.detect.features.fast_group import FastGroup
from undertow.detect.features.long_first_steps import LongFirstSteps
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import Values, matrices_of, middle
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Pace, Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

_OF_GROUPS = frozenset({"optimizer"})


class LargeUpdate:
    """Steps are so large that they undo what was learnt.

    What it sees
    ------------
    The length of every update over the length of the weight it changes, in the middle of all weight matrices. It
    speaks when steps of a tenth of the weight or more are followed by losses far above the one they started from, or
    when the weights have travelled twice their own length in steps of a twentieth or more and the loss is no better
    for it; the layers of a parameter group are named when its learning rate is thirty times that of the others. A
    single group is told, too, when its steps are a tenth of its weights and as much longer as its rate is higher.

    Why it is bad
    -------------
    A gradient is valid near the weight it was taken at. Steps of this size jump over what they aim at: the loss
    rises or bounces, ReLU units die, softmaxes and tanhs saturate, and often nothing recovers. The learning rate is
    the first suspect; losses added up over micro-batches instead of averaged, inputs of the wrong scale and
    gradients that are never cleared have the same effect.

    When it is wrong
    ----------------
    The first steps of small networks, of adapters that start at zero, and of second-order methods are as large in
    health; there the loss falls, and nothing is said. Weights shorter than usual are measured by the usual length. Of
    optimizers that step in turn, as those of a GAN do, nothing is said: their losses need not fall.

    References
    ----------
    Karpathy, CS231n course notes, "Babysitting the learning process": updates of about a thousandth of the weight.
    Bengio, "Practical recommendations for gradient-based training of deep architectures", 2012 (arXiv 1206.5533).
    """

    code: ClassVar[str] = "UPD001"
    of_one_training: ClassVar[bool] = True
    pace: ClassVar[Pace] = ("update", 3)

    def __init__(self) -> None:
        self._condition = Condition("steps")
        self._group, self._fast = Condition("group"), FastGroup()
        self._ahead = LayerStreak()
        self._long_start = LongFirstSteps()
        self._since = 0
        self._speed = 0.0
        self._fastest = 0.0
        self._travelled = 0.0  # in lengths of the weight, since steps became large
        self._last_step = -1  # the latest with a measured update
        self._last_fast = -1
        self._last_burst = -thresholds.LARGE_STEP_MEMORY - 1  # long ago
        self._base: float | None = None  # the level of the loss when steps became large
        self._calm: float | None = None  # the level of the loss at the latest step that was not large
        self._recent: deque[tuple[int, float]] = deque(maxlen=16)  # losses, for steps whose updates were not measured
        self._shocks = 0  # losses far above the base since then

    def grow(self, count: int) -> None:
        self._ahead.grow(count)

    @property
    def resting(self) -> bool:
        return self._base is None and not (self._condition.is_open or self._group.is_open)

    def news(self, batch: FrameBatch) -> Flags:
        """All but short steps with a loss, of which nothing more is known than how long they are."""
        matrices = matrices_of(batch.layout)
        if not len(matrices) or batch.frames_with("update") != list(range(len(batch))):
            return np.ones(len(batch), bool)
        short = matrices.middles(batch, "update_ratios") < thresholds.LARGE_STEP
        short &= np.isfinite(matrices.update_rows(batch)).any(axis=1) & ~batch.skipped
        short &= np.array([loss is not None for loss in batch.losses], bool)
        return ~short | batch.with_any(_OF_GROUPS)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        """Losses are remembered; of all else the latest."""
        losses = [loss for loss in batch.losses[first : last - 1] if loss is not None]
        self._recent.extend((loss.step, loss.value) for loss in losses)
        self._long_start.begin(batch.frames[first].step)
        self.observe(batch.view(last - 1))
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.loss
        if loss is not None:
            self._recent.append((loss.step, loss.value))
        if view.skipped:
            return ()
        self._fast.observe(view)
        self._long_start.observe(view)
        group: tuple[Verdict, ...] = ()
        if view.ids("update") is None:
            if self._base is not None and 0 < view.step - self._last_step <= thresholds.LARGE_STEP_MEMORY:
                # Not measured: a part of the step measured last. Weights grow under large steps, so they shorten.
                self._travelled += 0.25 * self._speed
        else:
            ratios = matrices_of(view.layout).update_ratios(view)
            if np.isfinite(ratios).any():
                if not self._long_start.covers(view.step):
                    self._move(view, middle(ratios))
                group = self._judge_groups(view, ratios)
        if self._base is None:
            return (*self._condition.stay(), *group)
        return (*self._judge(view), *group)

    def _move(self, view: FrameView, speed: float) -> None:
        if speed >= thresholds.LARGE_STEP:
            if self._base is None and view.loss is not None:
                # The loss of this very step was computed before its update.
                self._base = view.loss.value if self._calm is None else self._calm
                self._since, self._travelled, self._fastest = view.step, 0.0, 0.0
                self._shocks = 0
                for step, value in self._recent:  # between the last measured update, which was calm, and this one
                    if self._last_step < step < view.step:
                        self._shocks += self._is_shocking(view.loss, value)
            self._last_fast = view.step
            self._travelled += speed
            self._fastest = max(self._fastest, speed)
            if speed >= thresholds.LARGE_STEP_BURST:
                self._last_burst = view.step
        else:
            if view.loss is not None and not self._condition.is_open:
                self._calm = view.loss.level
            over = view.step - self._last_fast > thresholds.LARGE_STEP_MEMORY
            if over and not self._condition.is_open:
                self._base = None
        self._speed, self._last_step = speed, view.step

    def _is_shocking(self, loss: Loss, value: float) -> bool:
        base = loss.best if self._base is None else min(self._base, loss.best)
        if loss.positive:
            # Batches that differ are no shock while most of what was learnt is kept.
            undone = base + thresholds.LARGE_STEP_UNDONE * max(loss.start - base, 0.0)
            return value > max(thresholds.LARGE_STEP_SHOCK * base, undone)
        return value > base + thresholds.LARGE_STEP_SHOCK_DEVIATIONS * loss.noise

    def _no_better_than(self, view: FrameView, base: float) -> float:
        """Where nothing is learnt yet, batch noise hides what is: for a while the loss must be above it."""
        waited = view.step - self._since >= thresholds.LARGE_STEP_WAIT
        return base if waited or view.loss is None else base + view.loss.noise

    def _judge(self, view: FrameView) -> tuple[Verdict, ...]:
        loss, base = view.loss, self._base
        if loss is None or base is None or loss.actors > 1:  # losses of adversaries rise in health
            return self._condition.stay()
        burst = view.step - self._last_burst <= thresholds.LARGE_STEP_MEMORY
        if burst and (view.step > self._since or self._shocks):
            self._shocks += self._is_shocking(loss, loss.value)
        shocked = burst and self._shocks >= thresholds.LARGE_STEP_SHOCKS
        moved = loss.positive and self._travelled >= thresholds.LARGE_STEP_TRAVEL
        moved &= view.step - self._since >= thresholds.LARGE_STEP_MEMORY
        # After progress, a loss that wavers at the edge of stability is healthy; one that has lost it again is not.
        bound = base * thresholds.LARGE_STEP_SHOCK if moved and has_learnt(loss) else self._no_better_than(view, base)
        moved = moved and loss.level >= bound and all(value >= bound for _, value in list(self._recent)[-3:])
        if shocked or moved:
            return self._condition.hold(True, lambda: self._verdict(view, loss, base, shocked))
        if self._condition.is_open and loss.level >= base - loss.noise:
            return self._condition.stay()
        return self._condition.end()

    def _judge_groups(self, view: FrameView, ratios: Values) -> tuple[Verdict, ...]:
        """A group whose learning rate is far above the others', and whose steps are too.

        Over the usual length of its weights: their own is soon made of nothing but these steps.
        """
        matrices = matrices_of(view.layout)
        rates = matrices.values(view, "optimizer_rate")
        ids = matrices.ids.astype(np.int32)
        known = np.isfinite(ratios) & np.isfinite(rates)
        if known.sum() < 3:
            return self._group.stay()
        usual_step = middle(ratios[known])
        steps = matrices.values(view, "update_norm") / matrices.usual_norm
        ahead: NDArray[np.bool_] = known & np.isin(matrices.ids, self._fast.members)
        ahead &= (steps > thresholds.LARGE_STEP_BURST) & (steps > 0.3 * thresholds.GROUP_AHEAD * usual_step)
        self._ahead.end(ids[known & ~ahead])
        self._ahead.hold(ids[ahead], view.step)
        members = [int(i) for i in ids if self._ahead.length[i] >= thresholds.GROUP_PATIENCE]
        if not members:
            return self._group.end()
        return self._group.hold(members, lambda: self._group_verdict(view, members, ratios, rates))

    def _verdict(self, view: FrameView, loss: Loss, base: float, shocked: bool) -> Verdict:
        evidence = (
            Evidence("update_ratio", None, self._fastest, 1e-3,
                     f"largest step over its weight since step {self._since}, in the middle of all matrices"),
            Evidence("update_ratio", None, self._travelled, None,
                     f"lengths of the weight travelled in steps of a twentieth or more since step {self._since}"),
            Evidence("loss", None, loss.value if shocked else loss.level, base,
                     f"at step {view.step}, beside the loss before these steps"),
        )  # fmt: skip
        what = "and the loss shot up" if shocked else "and the loss is no better for it"
        summary = f"Steps are up to {self._fastest:.2g} times as long as the weights they change, {what}."
        if self._fast.members:
            whose = name_layers(view.layout, self._fast.members)
            summary = f"{summary[:-1]}; the learning rate of {whose} is far above that of the others."
        confidence = 0.9 if shocked else 0.8
        layers = self._fast.members  # otherwise the learning rate is at fault, no layer of it
        return Verdict(self._condition.key, True, Severity.SEVERE, layers, self._since, confidence, summary, evidence)

    def _group_verdict(self, view: FrameView, members: list[int], ratios: Values, rates: Values) -> Verdict:
        layout, matrices = view.layout, matrices_of(view.layout)
        place = matrices.ids == members[0]
        evidence = (
            Evidence("optimizer_rate", layout.path(members[0]), float(rates[place][0]), middle(rates),
                     "its learning rate, beside that in the middle of all matrices"),
            Evidence("update_ratio", layout.path(members[0]), float(ratios[place][0]), middle(ratios),
                     "its step over its weight, beside that in the middle of all matrices"),
        )  # fmt: skip
        summary = f"{name_layers(layout, members)} take far larger steps than the others: their group's rate is higher."
        since = int(self._ahead.since[members].min())
        return Verdict(self._group.key, True, Severity.MODERATE, tuple(members), since, 0.75, summary, evidence)
