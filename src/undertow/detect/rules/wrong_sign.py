"""LSS003."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.loss_trend import Loss
from undertow.detect.floor import Floor
from undertow.detect.out_of_reach import OutOfReach
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

PATIENCE = 2  # measured steps: by then optimizers that step in turn have shown themselves
_OF_THE_LOSS = frozenset({"loss_factor", "targets_are_inputs", "targets_beyond_reach", "loss_without_floor"})


class WrongSign:
    """The loss rewards the wrong thing: a negative sign, targets that are the inputs, or that no output can reach.

    What it sees
    ------------
    The constant factor between a loss function that cannot be negative (cross-entropy, squared or absolute error,
    binary cross-entropy) and what backward was called on, read in the graph of the loss; and that the loss is
    negative. Two measured steps in a row are needed. Between measurements, a loss of such a kind that has always been
    positive and drops in one step to about minus its size tells the same. And labels that are, at every place, the
    very token that the model is given at that place, or at the one before: a shift by one was forgotten, or went the
    wrong way. Last, a loss without a floor: a value and its exponential that fall together where they must pull against
    each other (the log-determinant of a flow, the logarithm of a deviation), or a loss far below zero that falls ever
    faster. And the overlap of a prediction with a mask (Dice's coefficient, intersection over union) that is minimised
    in place of one minus it, or log-probabilities picked by targets that lack their minus in a loss written by hand, as
    of a contrast. Of errors between numbers: an output that a ReLU, a sigmoid or the like made, and targets
    outside of the range of that function, by a tenth of their variance or more at two measured steps in a row;
    targets of a binary cross-entropy outside of 0 to 1 likewise.

    Why it is bad
    -------------
    Every step makes the error larger, without a bound: the model learns to be wrong, then the weights overflow. A model
    that is asked for what it is given learns to copy, with a loss near zero, and can predict nothing. What lies outside
    of the range of an output stays an error for ever.

    When it is wrong
    ----------------
    Rewards, likelihoods and other losses that are meant to be negative are unknown to this rule and never reported, nor
    are losses weighted by tensors, as in policy gradients. Adversaries that step in turn (a GAN's generator under the
    minimax loss) raise an error on purpose: with several optimizers in turn the rule is silent. Gradient ascent on
    purpose with a single optimizer (unlearning) is reported. Copying as a task is told from a forgotten shift where a
    decoder is given its targets one place late; through a code of the whole sequence it must be learnt at once to be
    told. A target that is now and then outside of a range on purpose is not told apart.

    References
    ----------
    Humbatova et al., "Taxonomy of Real Faults in Deep Learning Systems", 2020 (arXiv 1910.11015).
    Zhang et al., "AUTOTRAINER: An Automatic DNN Training Problem Detection and Repair System", 2021.
    """

    code: ClassVar[str] = "LSS003"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._condition, self._copying = Condition("sign"), Condition("copying")
        self._floor = Floor()
        self._reach = OutOfReach()
        self._copied = 0  # measured steps in a row
        self._copied_since = 0
        self._by_places = self._from_before = False
        self._lasting = 0
        self._first_step = 0
        self._known = False  # the loss is of a kind that cannot be negative
        self._level = math.inf  # of the losses while they were all positive
        self._turned: bool | None = None  # whether the first loss below zero was about minus that

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return not (self._copied >= PATIENCE or self._condition.is_open or self._copying.is_open) and (
            self._reach.resting and self._floor.resting
        )

    def news(self, batch: FrameBatch) -> Flags:
        usual = (batch.loss("positive") == 1) & (batch.loss("actors") == 1)
        return ~usual | (batch.loss("seen") <= limit.FLOOR_SEEN) | batch.with_any(_OF_THE_LOSS)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        loss = batch.latest_loss(first, last)
        if loss is not None:
            self._level = loss.level
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        said = (*self._observe_sign(view), *self._observe_targets(view), *self._reach.observe(view))
        # Of an error with the wrong sign more is known than that it has no floor.
        return said if self._condition.is_open else (*said, *self._floor.observe(view))

    def _observe_targets(self, view: FrameView) -> tuple[Verdict, ...]:
        copied = view.scalar("targets_are_inputs")
        if math.isnan(copied):
            return self._judge_copying(view) if self._copied >= PATIENCE else self._copying.stay()
        if not copied:
            self._copied = 0
            return self._copying.end()
        if self._copied == 0:
            self._copied_since = view.step
        self._copied += 1
        self._by_places, self._from_before = copied >= 1, copied == 2
        return self._judge_copying(view) if self._copied >= PATIENCE else ()

    def _judge_copying(self, view: FrameView) -> tuple[Verdict, ...]:
        """Copying through a code of the whole sequence is a task, and one that takes its time."""
        loss = view.loss
        at_once = loss is not None and loss.seen <= limit.COPIED_WITHIN and loss.remaining < limit.COPIED_REMAINING
        if self._copying.is_open or self._by_places or at_once:
            return self._copying.hold(None, self._verdict_copying)
        return ()

    def _verdict_copying(self) -> Verdict:
        where = "one place before" if self._from_before else "at the same place"
        evidence = Evidence(
            "targets_are_inputs", None, 1.0 + self._from_before, 0.0, f"every label is the token {where}"
        )
        summary = "The targets are the inputs themselves, place by place: a shift by one token was forgotten."
        if self._from_before:
            summary = "The targets are the tokens one place before: they are shifted the wrong way, and only copied."
        return Verdict("copying", True, Severity.SEVERE, (), self._copied_since, 0.9, summary, (evidence,))

    def _observe_sign(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.loss
        if loss is None:
            return self._condition.stay()
        factor = view.frame.scalars.get("loss_factor", math.nan)
        if math.isnan(factor):
            return self._observe_drop(loss)
        self._known = view.scalar("loss_kind") != LossKind.UNKNOWN
        if factor >= 0 or not self._known or loss.value >= 0 or loss.actors > 1:
            self._lasting = 0
            if loss.positive:
                self._level = loss.level
            else:
                self._turned = False  # below zero with the right sign: what is differentiated holds more than an error
            return self._condition.end()
        return self._hold(loss.step, lambda: self._verdict(loss.value, factor))

    def _observe_drop(self, loss: Loss) -> tuple[Verdict, ...]:
        """The factor of this step was not measured, but the loss speaks."""
        if loss.positive:
            self._level = loss.level
            return ()
        if self._turned is None:
            # A term that is taken off carries a loss below zero slowly, and from near zero.
            self._turned = loss.value < -0.5 * self._level and self._level > 0.2 * loss.start
        if not self._turned or not self._known or loss.actors > 1 or loss.seen < PATIENCE + 3 or loss.value >= 0:
            return self._condition.stay()
        return self._hold(loss.step, lambda: self._verdict(loss.value, -1.0))

    def _hold(self, step: int, describe: Callable[[], Verdict]) -> tuple[Verdict, ...]:
        if self._lasting == 0:
            self._first_step = step
        self._lasting += 1
        return self._condition.hold(None, describe) if self._lasting >= PATIENCE else ()

    def _verdict(self, value: float, factor: float) -> Verdict:
        evidence = (
            Evidence("loss_factor", None, factor, None, "constant factor between the error and what is minimised"),
            Evidence("loss", None, value, None, "below zero, where this error can never be"),
        )
        summary = (
            f"The loss is an error times {factor:g}: minimising it makes the error as large as possible. Turn its sign."
        )
        return Verdict("sign", True, Severity.SEVERE, (), self._first_step, 0.97, summary, evidence)
