"""LSS004."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.wording import of_themselves
from undertow.detect.rule import Said, Verdict
from undertow.detect.unequal_parts import UnequalParts
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class AddedLosses:
    """The losses of micro-batches are added where their mean was meant, or averaged whatever their size.

    What it sees
    ------------
    Several backward passes to a step, a constant factor of 1 between the loss function and each of them, and a first
    loss that is as many times as large as one batch's would be for a model that knows nothing (the logarithm of the
    number of classes, the spread of the targets). It is an alarm when the steps are too large for it: updates of a
    fifth of the weights or more, or a loss that leaps or rises, or that is no lower after sixty steps. The same where
    passes that had been divided by their number no longer are, as in another branch of the loop. And, in the
    first steps, three or more micro-batches of one kind in which a row (a token) counts twice as much as in another, at
    four steps in a row.

    Why it is bad
    -------------
    The gradient, and under SGD the step, is larger by the number of micro-batches: the same as a learning rate that
    many times as high. In the mean of unequal means a token of a short text weighs more than one of a long text.

    When it is wrong
    ----------------
    Under Adam the factor cancels, and a rate can be chosen for the sum: without harm this is only a hint. Losses with a
    summed reduction, several different losses with a backward pass each, and optimizers in turn are not reported. Texts
    that are meant to weigh alike whatever their length are reported.

    References
    ----------
    PyTorch documentation, "Automatic Mixed Precision examples: gradient accumulation".
    """

    code: ClassVar[str] = "LSS004"

    def __init__(self) -> None:
        self._condition = Condition("added")
        self._passes = 0.0
        self._anchored: bool | None = None  # is the first loss a sum of this many? None: not known
        self._first_step = 0
        self._seen = 0
        self._harm = ""
        self._averaged = False  # the passes of a step were once divided by their number
        self._late = False  # …and no longer are
        self._parts = UnequalParts()

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        return self._passes < 2

    def news(self, batch: FrameBatch) -> Flags:
        return batch.scalar("backward_count", 1.0) >= 2

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        return (*self._observe_sum(view), *self._parts.observe(view))

    def _observe_sum(self, view: FrameView) -> tuple[Verdict, ...]:
        passes = view.frame.scalars.get("backward_count", 1.0)
        loss = view.loss
        if passes < 2 and self._passes < 2:
            return ()
        if loss is None:
            return self._condition.stay()
        if loss.actors > 1 or passes != self._passes:
            self._begin(view, passes)
            ended = self._condition.end()
            if passes < 2 or loss.actors > 1:
                return ended
        self._seen += 1
        factor = view.frame.scalars.get("loss_factor", math.nan)
        if not math.isnan(factor):
            if abs(factor - 1.0) > 0.01:
                self._anchored = False
                self._averaged |= abs(factor * passes - 1.0) < 0.01
                return self._condition.end()
            if self._averaged and not self._anchored:
                if self._anchored is False:
                    self._begin(view, passes)
                self._anchored = self._late = True
            guess = chance_level(view)
            if self._anchored is None and guess > 0 and loss.seen <= thresholds.ADDED_SEEN_EARLY:
                share = loss.first / (passes * guess)
                many = passes >= thresholds.ADDED_MANY
                within = thresholds.ADDED_WITHIN_OF_MANY if many else thresholds.ADDED_WITHIN
                self._anchored = 1 / within < share < within
        if not self._anchored or self._seen < thresholds.ADDED_PATIENCE:
            return self._condition.stay()
        self._harm = self._harm or self._harm_of(view)
        return self._condition.hold(self._harm, lambda: self._verdict(loss.first, int(passes), chance_level(view)))

    def _begin(self, view: FrameView, passes: float) -> None:
        self._passes, self._anchored, self._seen, self._harm = passes, None, 0, ""
        self._first_step = view.step

    def _harm_of(self, view: FrameView) -> str:
        """What shows that the steps are too large; empty when nothing does."""
        size = middle(matrices_of(view.layout).update_ratios(view)) if view.row("update_ratio") is not None else 0.0
        if size > thresholds.LARGE_UPDATE:
            return f"half of the weights changed by more than {of_themselves(size)} in one step"
        loss = view.loss
        assert loss is not None
        first = loss.first * (self._passes if self._late else 1.0)  # a sum of as many is as many times as large
        if loss.value > thresholds.LEAPS_TO * first > 0 and loss.jump > thresholds.ADDED_JUMP:
            return "the loss leapt up"
        if loss.seen >= thresholds.ADDED_NO_PROGRESS_AFTER and loss.level > 1.1 * first > 0:
            return "the loss has risen"
        if (
            loss.seen >= thresholds.NOT_LEARNING_STEPS
            and loss.best > thresholds.NOT_LEARNING_REMAINING * loss.start > 0
        ):
            return "nothing was learnt"
        return ""

    def _verdict(self, first: float, passes: int, guess: float) -> Verdict:
        known = math.isfinite(guess)
        evidence = [
            Evidence("backward_count", None, float(passes), None, "backward passes to a step, none divided"),
            Evidence("loss", None, first, guess if known else None, "first loss, and what one batch's would be"),
        ]
        summary = f"The losses of {passes} micro-batches are added, not averaged: every step is {passes} times as large"
        if self._late:
            evidence = [Evidence("loss_factor", None, 1.0, 1 / passes, "of each pass, and what makes their mean")]
            summary = (
                f"The losses of {passes} micro-batches are added since step {self._first_step}; before, they were "
                f"averaged. Every step is {passes} times as large"
            )
        if not self._harm:
            summary += "."
            return Verdict("added", True, Severity.MILD, (), self._first_step, 0.8, summary, tuple(evidence))
        evidence.append(Evidence("update_ratio", None, None, None, self._harm))
        summary += f", and {self._harm}."
        return Verdict("added", True, Severity.SEVERE, (), self._first_step, 0.9, summary, tuple(evidence))
