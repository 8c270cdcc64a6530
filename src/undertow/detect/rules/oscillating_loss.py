"""OPT004."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.loss_trend import Loss
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

_ANEW = frozenset({"optimizer_made_anew"})


class OscillatingLoss:
    """The loss swings up and down in waves and gets nowhere.

    What it sees
    ------------
    Waves: nine losses in a row that are all above nine earlier ones, then nine that are all below these, and so on. A
    swing counts when the gap between them is a fifth of all that was ever learnt, and a tenth of the first loss. It is
    an alarm after six swings of which the latest is still half as large as the largest, under a learning rate that
    does not swing itself. Where a single step made all of a rise, other data came: swings are counted anew from there.

    Why it is bad
    -------------
    The steps overshoot: the rate or the momentum is too high for this loss.

    When it is wrong
    ----------------
    Noise of small batches and losses of several tasks jump from step to step and never keep apart for nine steps.
    Cyclic learning rates make waves on purpose, and so does a model that begins anew with its optimizer. Full-batch
    training at the edge of stability falls while it oscillates. Losses below zero and optimizers in turn are left out.

    References
    ----------
    Cohen et al., "Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability", 2021
    (arXiv 2103.00065).
    Zhang et al., "AUTOTRAINER: An Automatic DNN Training Problem Detection and Repair System", 2021.
    """

    code: ClassVar[str] = "OPT004"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._condition = Condition("waves")
        # Since the last turning point: the lowest ceiling and the highest floor of nine losses in a row.
        self._ceiling, self._floor = math.inf, -math.inf
        self._direction = 0
        self._last = math.nan
        self._leap = 0.0  # the largest rise from one step to the next since then
        self._swings: list[tuple[int, float]] = []  # (step, size)
        self._rate_low = self._rate_high = math.nan

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def attend(self, batch: FrameBatch) -> Iterator[Said]:
        """While the loss has not turned, only how far it reaches is remembered."""
        anew, rates = batch.with_any(_ANEW).tolist(), batch.scalar("lr").tolist()
        for place, loss in enumerate(batch.losses):
            if (
                loss is None
                or anew[place]
                or self._swings
                or self._condition.is_open
                or not self._rate_low <= rates[place] <= self._rate_high
                or not (loss.positive and loss.actors == 1 and loss.seen >= thresholds.DIVERGED_START)
                or self._turns(loss)
            ):
                yield place, self.observe(batch.view(place))

    def _turns(self, loss: Loss) -> bool:
        """Whether this loss shows a turning point. If not, it is remembered."""
        leap = max(self._leap, loss.value - self._last)
        ceiling, floor = min(self._ceiling, loss.high), max(self._floor, loss.low)
        turns = (self._direction <= 0 and loss.low - ceiling > self._enough(loss)) or (
            self._direction >= 0 and floor - loss.high > self._enough(loss)
        )
        if not turns:
            self._ceiling, self._floor, self._leap, self._last = ceiling, floor, leap, loss.value
        return turns

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.loss
        if loss is None:
            return self._condition.stay()
        if not loss.positive or loss.actors > 1:
            return self._condition.end()
        if view.frame.scalars.get("optimizer_made_anew") == 1:  # another training begins, as of the next fold
            self._swings.clear()
            self._direction, self._ceiling, self._floor = 0, math.inf, -math.inf
        self._leap, self._last = max(self._leap, loss.value - self._last), loss.value
        rate = view.frame.scalars.get("lr", math.nan)
        self._rate_low, self._rate_high = _widened(self._rate_low, self._rate_high, rate)
        if loss.seen < thresholds.DIVERGED_START:
            return ()
        self._turn(loss)
        if not self._swings or loss.step - self._swings[-1][0] > thresholds.WAVE_FORGOTTEN * self._period():
            self._swings.clear()
            return self._condition.end()
        if len(self._swings) < thresholds.WAVES or self._rate_high > 1.5 * self._rate_low:
            return self._condition.stay()
        sizes = [size for _, size in self._swings]
        if sizes[-1] < 0.5 * max(sizes):
            return self._condition.end()
        return self._condition.hold(None, lambda: self._verdict(loss))

    def _turn(self, loss: Loss) -> None:
        """A turning point is known once nine losses in a row keep clear of nine on its other side."""
        enough = self._enough(loss)
        self._ceiling, self._floor = min(self._ceiling, loss.high), max(self._floor, loss.low)
        up, down = loss.low - self._ceiling, self._floor - loss.high
        if self._direction <= 0 and up > enough:
            self._swing(loss, 1, up)
        elif self._direction >= 0 and down > enough:
            self._swing(loss, -1, down)

    @staticmethod
    def _enough(loss: Loss) -> float:
        return max(thresholds.WAVE_SHARE * (loss.start - loss.best), thresholds.WAVE_SHARE_OF_START * loss.start)

    def _swing(self, loss: Loss, direction: int, size: float) -> None:
        if direction > 0 and self._leap > size:  # in one step: other data came, which is no wave
            self._swings.clear()
        elif self._direction:
            self._swings.append((loss.step, size))
            del self._swings[:-8]
        self._leap = 0.0
        self._direction, self._ceiling, self._floor = direction, loss.high, loss.low

    def _period(self) -> float:
        """Steps of a swing, so far."""
        if len(self._swings) < 2:
            return thresholds.WAVE_LONGEST
        return (self._swings[-1][0] - self._swings[0][0]) / (len(self._swings) - 1)

    def _verdict(self, loss: Loss) -> Verdict:
        size = max(size for _, size in self._swings)
        how = f"largest of {len(self._swings)} swings of the loss, one every {self._period():.0f} steps"
        evidence = (
            Evidence("loss", None, size, None, how),
            Evidence("loss", None, loss.level, loss.best, "level now, and at its best"),
        )
        summary = (
            f"The loss swings up and down by {size:.3g} about every {self._period():.0f} steps instead of falling: "
            "the learning rate or the momentum is too high."
        )
        return Verdict("waves", True, Severity.MODERATE, (), self._swings[0][0], 0.7, summary, evidence)


def _widened(low: float, high: float, value: float) -> tuple[float, float]:
    if not value > 0:
        return low, high
    return (value if math.isnan(low) else min(low, value)), (value if math.isnan(high) else max(high, value))
