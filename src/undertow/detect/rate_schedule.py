"""A schedule that cannot work: it takes the learning rate away before anything is learnt, or never gives it."""

from __future__ import annotations

import math

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.view import FrameView
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.progress import has_learnt
from undertow.detect.features.rate_history import RateHistory
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class RateSchedule:
    """Of one optimizer. `largest` is the largest update over weight, of any matrix so far."""

    def __init__(self) -> None:
        self._gone, self._share = Condition("schedule"), Condition("share")
        self._made_with = math.nan  # the rate before a schedule took over
        self._fell_while_falling = False
        self._begun = -1

    @property
    def is_gone(self) -> bool:
        return self._gone.is_open

    def rests(self, history: RateHistory) -> bool:
        """Whether nothing is open, and none can be while the rate stays where it is; at all but the first losses."""
        unknown = self._made_with >= 1 or not history.peak < limit.NEVER_ABOVE * self._made_with
        up = history.now > limit.FALLING_UNTIL * history.peak and self._begun >= 0
        return unknown and up and not (self._gone.is_open or self._share.is_open)

    def observe(self, view: FrameView, history: RateHistory, loss: Loss, largest: float) -> tuple[Verdict, ...]:
        if self._begun < 0:
            self._begun = view.step
        return (*self._observe_share(view, history, loss, largest), *self._observe_gone(view, history, loss))

    def _observe_gone(self, view: FrameView, history: RateHistory, loss: Loss) -> tuple[Verdict, ...]:
        fallen = 0
        # The last time it is said is when the rate went; where that was early, when a trend can first be seen.
        if history.now > limit.FALLING_UNTIL * history.peak or loss.seen <= limit.FALLING_SEEN:
            early = loss.seen <= limit.FALLING_SEEN
            self._fell_while_falling = loss.falling or (early and self._fell_while_falling)
        for share, (fewest, part) in limit.FALLEN_TO.items():
            below = history.fallen_for(share)
            if below >= max(fewest, part * (history.steps - below)):
                unlearnt = not loss.remaining < limit.FALLEN_REMAINING and loss.gain < limit.FALLEN_GAIN
                shrinks = history.shrinks_for >= limit.FALLEN_EVENLY
                cut_off = (self._fell_while_falling or shrinks) and loss.remaining > limit.FALLEN_WHILE_FALLING
                if unlearnt or (cut_off and share == min(limit.FALLEN_TO)):
                    fallen = below
        if fallen:
            return self._gone.hold(None, lambda: self._verdict_gone(view, history, fallen))
        if self._gone.is_open and history.now < min(limit.FALLEN_TO) * history.peak:
            return self._gone.stay()
        return self._gone.end()

    def _verdict_gone(self, view: FrameView, history: RateHistory, below: int) -> Verdict:
        evidence = [
            Evidence("lr", None, history.now, history.peak, f"below its peak for {below} steps; it fell to this")
        ]
        if view.loss is not None:
            evidence.append(Evidence("loss", None, view.loss.level, view.loss.start, "what is left of the first loss"))
        summary = (
            f"The schedule has let the learning rate fall from {history.peak:.3g} to {history.now:.3g} within "
            f"{history.steps} steps, before the model has learnt. Is it stepped per batch with settings for epochs, or "
            "does it wait for a metric to rise that should fall?"
        )
        first = max(view.step - below, 0)
        return Verdict("schedule", True, Severity.SEVERE, (), first, 0.93, summary, tuple(evidence))

    def _observe_share(self, view: FrameView, history: RateHistory, loss: Loss, largest: float) -> tuple[Verdict, ...]:
        self._made_with = view.frame.scalars.get("initial_lr", self._made_with)
        # A rate of 1 is there to be set by the schedule.
        if self._made_with >= 1 or not history.peak < limit.NEVER_ABOVE * self._made_with:
            return self._share.end()
        settled = history.peak_since >= limit.NEVER_ABOVE_STEPS and loss.seen > limit.NEVER_ABOVE_STEPS
        flat = loss.gain < limit.FLAT_DEVIATIONS and not loss.remaining < limit.NOT_LEARNING_REMAINING
        settled |= flat and loss.seen >= limit.NOT_LEARNING_STEPS  # it rises, but not within sight
        squared = abs(history.peak / self._made_with**2 - 1) < 0.01
        if not settled or has_learnt(loss) or not (squared or largest < limit.SMALL_UPDATE):
            return self._share.stay()
        return self._share.hold(None, lambda: self._verdict_share(view, history, squared))

    def _verdict_share(self, view: FrameView, history: RateHistory, squared: bool) -> Verdict:
        how = f"largest learning rate up to step {view.step}, and the one that the optimizer was made with"
        evidence = [Evidence("lr", None, history.peak, self._made_with, how)]
        if view.loss is not None:
            evidence.append(Evidence("loss", None, view.loss.level, view.loss.start, "what is left of the first loss"))
        reason = (
            ": it returns a rate where a factor belongs, and the two are multiplied."
            if squared
            else f" within {history.steps} steps, and the model does not learn. Does a warm-up never end?"
        )
        summary = (
            f"The schedule makes a learning rate of {history.peak:.3g} at most out of {self._made_with:.3g}{reason}"
        )
        confidence = 0.95 if squared else 0.8
        return Verdict("share", True, Severity.SEVERE, (), self._begun, confidence, summary, tuple(evidence))
