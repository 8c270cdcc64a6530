"""UPD002."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import LayerStreak
from undertow.detect.engine.view import FrameView
from undertow.detect.features.between_steps import BetweenSteps
from undertow.detect.features.first_weights import FirstWeights
from undertow.detect.features.matrices import Matrices, Values, matrices_of, middle
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Pace, Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

_CROSS_ENTROPY = 1.0
_OF_MORE = frozenset({"optimizer", "loss_kind"})


class SmallUpdate:
    """Steps are so small that nothing is learnt.

    What it sees
    ------------
    The length of every update over the length of the weight it changes. It speaks when nine tenths of the weight
    matrices move by less than three parts in 100,000 per step, at eight measured steps, while they have a gradient
    and the loss has made no progress; or by less than 1.5 in 10,000 over forty steps, when the gradients of
    successive steps agree besides, so that there is a direction to follow. A single parameter group is named when
    its learning rate and its steps are a hundredth of the others' or less, also where it holds most of the model and
    its steps are less than three in 100,000. And updates of any size count as none when they are taken back, whole or
    for the most part: step after step points the same way, yet the weights are never further from their start than one
    or two updates are long, or than half the way of a random walk, because something
    writes to them between the steps.

    Why it is bad
    -------------
    At this speed a weight needs ten thousands of steps to change by its own size. The run costs what a good one
    costs and learns nothing. Too small a learning rate is the usual cause, a schedule that decays too soon, a clipping
    threshold that is too low or an optimizer setting that defeats it the others.

    When it is wrong
    ----------------
    Not during a warm-up, nor for a model that has learnt already, nor at the end of a schedule, nor for a model that
    starts far below the loss of a guess, as a pretrained one does. Layers that are slow by design while others are not
    are not counted. A group that hardly moves is a remark where its weights do not look as if drawn at random: what was
    trained before is often trained on slowly.

    References
    ----------
    Karpathy, CS231n course notes, "Babysitting the learning process": updates of about a thousandth of the weight.
    """

    code: ClassVar[str] = "UPD002"
    pace: ClassVar[Pace] = ("update", 5)

    def __init__(self) -> None:
        self._condition = Condition("steps")
        self._group = Condition("group")
        self._undone = Condition("undone")
        self._between = BetweenSteps()
        self._taken_back = self._falls_short = 0  # measured steps in a row
        self._written = 0  # measured steps before which the program had written into most matrices
        self._begun: int | None = None
        self._behind = LayerStreak()
        self._first = FirstWeights()
        self._tiny = 0  # measured steps in a row
        self._small = 0
        self._since = 0
        self._speed = math.nan  # update over weight; nine tenths of the matrices move by less
        self._agreement = 0.0  # running mean of the cosine of successive gradients
        self._rate = math.nan
        self._moved = False  # some matrix has moved at some time; otherwise UPD003 speaks

    def grow(self, count: int) -> None:
        self._behind.grow(count)
        self._first.grow(count)
        self._between.grow(count)

    @property
    def resting(self) -> bool:
        conditions = (self._condition, self._group, self._undone)
        return not (self._written or self._begun is None or any(one.is_open for one in conditions))

    def news(self, batch: FrameBatch) -> Flags:
        """All but steps of a model that has learnt, between which nobody wrote into the weights."""
        if not len(matrices_of(batch.layout)):
            return np.ones(len(batch), bool)
        learnt = np.array([has_learnt(loss) for loss in batch.losses], bool)
        return ~learnt | batch.skipped | batch.with_any(_OF_MORE) | self._between.news(batch, thresholds.WRITTEN)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        self._between.pass_over(batch, first, last)
        self._tiny = self._small = 0
        rates = batch.scalar("lr")[first:last]
        known = rates[~np.isnan(rates)]
        self._rate = float(known[-1]) if len(known) else self._rate
        if batch.has("gradient"):
            at = slice(*np.searchsorted(batch.frames_with("gradient"), (first, last)))
            for cosine in matrices_of(batch.layout).middles(batch, "gradient_cosine")[at].tolist():
                self._agree(cosine)
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        self._first.take(view)
        return (*self._judge_speed(view), *self._judge_undone(view))

    def _judge_undone(self, view: FrameView) -> tuple[Verdict, ...]:
        """Updates that are taken back, whole or for the most part, before the next one."""
        written = self._between.observe(view)
        if self._begun is None:
            self._begun = view.step
        if view.ids("weight") is None or view.ids("update") is None:
            return self._undone.stay()
        if not self._written and (written is None or not (written > thresholds.WRITTEN).any()):
            return ()  # nobody ever writes to the weights: the usual case, and cheap
        matrices = matrices_of(view.layout)
        ratios, drifts = matrices.values(view, "update_ratio"), matrices.values(view, "weight_drift")
        known = np.isfinite(ratios) & np.isfinite(drifts)
        if not known.any() or has_learnt(view.loss):
            self._taken_back = self._falls_short = 0
            return self._undone.end()
        agree = matrices.values(view, "update_cosine") > thresholds.UNDONE_AGREEMENT
        self._follow_written(view, written, known, agree & (drifts < thresholds.UNDONE_WITHIN * ratios))
        # Updates that agree come to more than those of a random walk: its length grows with the root of the steps.
        steps = view.step - self._begun
        short = agree & (drifts < thresholds.UNDONE_SHORT * math.sqrt(steps) * ratios)
        lasting = steps >= thresholds.UNDONE_STEPS and self._written >= thresholds.UNDONE_WRITTEN
        self._falls_short = self._falls_short + 1 if lasting and _most(short, known) else 0
        if self._taken_back < thresholds.UNDONE_FRAMES and self._falls_short < thresholds.UNDONE_SHORT_FRAMES:
            return self._undone.stay() if self._taken_back or self._falls_short else self._undone.end()
        return self._undone.hold(True, lambda: self._undone_verdict(view, middle(ratios[known]), middle(drifts[known])))

    def _follow_written(self, view: FrameView, written: Values | None, known: Flags, back: Flags) -> None:
        """Did the program write into the weights since the step before? Seen where both steps are measured."""
        if written is None or np.isnan(written).all():
            return
        row = np.full(view.layout.count, np.nan)
        row[view.ids("weight")] = written
        rewritten = row[matrices_of(view.layout).ids] > thresholds.WRITTEN
        self._written += _most(rewritten, known)
        self._taken_back = self._taken_back + 1 if _most(rewritten & back, known) else 0

    def _undone_verdict(self, view: FrameView, length: float, drift: float) -> Verdict:
        evidence = (
            Evidence("update_ratio", None, length, None,
                     f"length of the update of step {view.step} over the weight, in the middle of all matrices"),
            Evidence("weight_drift", None, drift, None,
                     "distance from the start over the weight: all updates together come to no more than that"),
        )  # fmt: skip
        since = self._begun or 0 if self._falls_short else view.step - self._taken_back + 1
        summary = "Every update is taken back before the next step: the program writes old values into the weights."
        return Verdict(self._undone.key, True, Severity.SEVERE, (), since, 0.93, summary, evidence)

    def _judge_speed(self, view: FrameView) -> tuple[Verdict, ...]:
        rate, before = view.scalar("lr"), self._rate
        if not math.isnan(rate):
            self._rate = rate
        if view.skipped:
            return ()
        matrices = matrices_of(view.layout)
        if not len(matrices):
            return ()
        if view.ids("gradient") is not None:
            self._agree(middle(matrices.values(view, "gradient_cosine")))
        group = self._group.stay()
        if view.ids("update") is not None and not self._starts_low(view):
            group = self._judge_groups(view, matrices, matrices.values(view, "update_ratio"))
        if rate > before or has_learnt(view.loss) or self._starts_low(view):
            self._tiny = self._small = 0
            return (*self._condition.end(), *group)
        if view.ids("update") is not None:
            ratios = matrices.values(view, "update_ratio")
            moving = self._with_gradient(view, matrices, ratios)
            if moving.any():
                ordered = np.sort(ratios[moving])
                self._measure(view, float(ordered[math.ceil(0.9 * (len(ordered) - 1))]))
        if self._small == 0:
            return (*self._condition.end(), *group)
        steps = view.step - self._since
        slow = self._small >= thresholds.SMALL_STEP_FRAMES and steps >= thresholds.SMALL_STEP_PATIENCE
        slow &= self._agreement > thresholds.SMALL_STEP_AGREEMENT
        # Where updates are measured rarely, a few of them will do: the learning rate has not risen since.
        rarely = self._tiny >= 3 and steps >= thresholds.TINY_STEP_PATIENCE
        if not slow and not rarely and self._tiny < thresholds.TINY_STEP_FRAMES:
            return (*self._condition.stay(), *group)
        return (*self._condition.hold(True, lambda: self._verdict(view)), *group)

    def _agree(self, cosine: float) -> None:
        if not math.isnan(cosine):
            self._agreement += 0.2 * (cosine - self._agreement)

    def _measure(self, view: FrameView, speed: float) -> None:
        self._speed = speed
        self._moved |= speed > 0
        if speed >= thresholds.SMALL_STEP or not self._moved:
            self._tiny = self._small = 0
            return
        if self._small == 0:
            self._since = view.step
        self._small += 1
        self._tiny = self._tiny + 1 if speed < thresholds.TINY_STEP else 0

    def _with_gradient(self, view: FrameView, matrices: Matrices, ratios: Values) -> NDArray[np.bool_]:
        """Matrices of which the update is known, and the gradient is not known to be zero."""
        known = np.isfinite(ratios)
        if view.ids("gradient") is not None:
            known &= ~(matrices.values(view, "gradient_norm") == 0)
        return known

    def _starts_low(self, view: FrameView) -> bool:
        """The loss began far below that of a guess: the model was trained before."""
        loss = view.loss
        if loss is None or view.scalar("loss_kind") != _CROSS_ENTROPY:
            return False
        return loss.start < thresholds.TRAINED_BEFORE * math.log(max(view.scalar("loss_classes"), 2.0))

    def _judge_groups(self, view: FrameView, matrices: Matrices, ratios: Values) -> tuple[Verdict, ...]:
        """A group whose learning rate is far below the others', and whose steps are too. A rate of zero is UPD003."""
        rates = matrices.values(view, "optimizer_rate")
        known = np.isfinite(ratios) & (rates > 0)
        if known.sum() < 3:
            return self._group.stay()
        ids = matrices.ids.astype(np.int32)
        behind = known & (rates < middle(rates[known]) / thresholds.GROUP_BEHIND)
        behind &= ratios < 3.0 * middle(ratios[known]) / thresholds.GROUP_BEHIND
        behind |= self._most_behind(known, ratios, rates)
        self._behind.end(ids[known & ~behind])
        self._behind.hold(ids[behind], view.step)
        members = [int(i) for i in ids if self._behind.length[i] >= thresholds.GROUP_PATIENCE]
        if not members:
            return self._group.end()
        return self._group.hold(members, lambda: self._group_verdict(view, members, ratios, rates))

    @staticmethod
    def _most_behind(known: Flags, ratios: Values, rates: Values) -> Flags:
        """Where most hardly move, by any measure, while some do at a hundred times the rate."""
        moves = known & (ratios > thresholds.SMALL_STEP)
        if not moves.any():
            return moves
        usual = float(np.median(rates[moves]))
        return known & (rates < usual / thresholds.GROUP_BEHIND) & (ratios < thresholds.TINY_STEP)

    def _verdict(self, view: FrameView) -> Verdict:
        speed = self._speed
        evidence = [
            Evidence("update_ratio", None, speed, 1e-3,
                     f"nine tenths of the matrices move by less than this share of themselves at step {view.step}"),
            Evidence("gradient_cosine", None, self._agreement, None,
                     "agreement of successive gradients: the direction is there"),
        ]  # fmt: skip
        if not math.isnan(self._rate):
            evidence.append(Evidence("lr", None, self._rate, None, "the learning rate"))
        if view.loss is not None:
            evidence.append(Evidence("loss", None, view.loss.level, view.loss.start, "the loss, beside its start"))
        summary = f"Weights change by {speed:.1g} of themselves per step at most: too little to learn anything."
        confidence = 0.9 if speed < thresholds.TINY_STEP else 0.7
        return Verdict(
            self._condition.key, True, Severity.SEVERE, (), self._since, confidence, summary, tuple(evidence)
        )

    def _group_verdict(self, view: FrameView, members: list[int], ratios: Values, rates: Values) -> Verdict:
        layout = view.layout
        place, others = matrices_of(layout).ids == members[0], ~np.isin(matrices_of(layout).ids, members)
        evidence = (
            Evidence("optimizer_rate", layout.path(members[0]), float(rates[place][0]), middle(rates[others]),
                     "its learning rate, beside that in the middle of the other matrices"),
            Evidence("update_ratio", layout.path(members[0]), float(ratios[place][0]), middle(ratios[others]),
                     "its step over its weight, beside that in the middle of the other matrices"),
        )  # fmt: skip
        verb, its, they = ("moves", "its", "It stays") if len(members) == 1 else ("move", "their", "They stay")
        summary = (
            f"{name_layers(layout, members)} hardly {verb} while the others do: {its} group's rate is far lower. "
            f"{they} nearly as at the start, and the rest learns around that."
        )
        since = int(self._behind.since[members].min())
        severity, confidence = Severity.MODERATE, 0.75
        if not self._first.is_new[members].any():
            severity, confidence = Severity.MILD, 0.5
            summary += " They were not new when training began: that may be meant."
        return Verdict(self._group.key, True, severity, tuple(members), since, confidence, summary, evidence)


def _most(flags: Flags, known: Flags) -> bool:
    return float(np.mean(flags[known])) >= thresholds.UNDONE_SHARE
