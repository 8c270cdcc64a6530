"""OPT004: the loss swings up and down and gets nowhere."""

import math

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import LOWER_LEARNING_RATE, SHUFFLE_THE_DATA, USUAL_MOMENTUM
from undertow.schema import Evidence, Severity


class OscillatingLoss(Condition):
    """The loss swings up and down in waves and gets nowhere.

    What it sees: Waves: nine losses in a row that are all above nine earlier ones, then nine that are all below these,
        and so on. A swing counts when the gap between them is a fifth of all that was ever learnt, and a tenth of the
        first loss. It is an alarm after six swings of which the latest is still half as large as the largest, under a
        learning rate that does not swing itself. Where a single step made all of a rise, other data came: swings are
        counted anew from there.
    Why it is bad: The steps overshoot: the rate or the momentum is too high for this loss.
    When it is wrong: Noise of small batches and losses of several tasks jump from step to step and never keep apart for
        nine steps. Cyclic learning rates make waves on purpose, and so does a model that begins anew with its
        optimizer. Full-batch training at the edge of stability falls while it oscillates. Losses below zero and
        optimizers in turn are left out.
    References: Cohen et al., "Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability", 2021
        (arXiv 2103.00065).
        Zhang et al., "AUTOTRAINER: An Automatic DNN Training Problem Detection and Repair System", 2021.
    """

    code, variant, formerly = "OPT004", "oscillating-loss", "waves"
    places = ("rate",)
    stage, is_vague = Stage.COURSE, True
    is_of_one_training = True
    remedies = (LOWER_LEARNING_RATE, SHUFFLE_THE_DATA, USUAL_MOMENTUM)
    judged_after = Limit.sample(10, "losses: the level is a median of nine")
    waves = Limit(6, "swings: noise makes two or three in a row by chance")
    share = Limit(0.2, "of what was learnt: the gap between nine losses and nine others")
    share_of_start = Limit(0.1, "of the first loss, for the same gap")
    dying_out = Limit(0.5, "of the largest swing, for the latest")
    longest = Limit.memory(100, "steps of a swing, while only one is known")
    forgotten = Limit(4, "periods without a swing")
    rate_swings = Limit(1.5, "times the lowest rate: cyclic rates make waves on purpose")

    def __init__(self) -> None:
        # Since the last turning point: the lowest ceiling and the highest floor of nine losses in a row.
        self._ceiling, self._floor = math.inf, -math.inf
        self._direction = 0
        self._last = math.nan
        self._leap = 0.0  # the largest rise from one step to the next since then
        self._swings: list[tuple[int, float]] = []  # (step, size)
        self._rate_low = self._rate_high = math.nan

    def observe(self, view: FrameView) -> Judgement | None:
        loss, scalars = view.loss, view.frame.scalars
        if loss is None:
            return self.stay()
        if not loss.positive or loss.actors > 1:
            return self.end()
        if scalars.get("optimizer_made_anew") == 1:  # another training begins, as of the next fold
            self._swings.clear()
            self._direction, self._ceiling, self._floor = 0, math.inf, -math.inf
        self._leap, self._last = max(self._leap, loss.value - self._last), loss.value
        rate = scalars.get("lr", 0.0)
        if rate > 0 and not self._rate_low <= rate <= self._rate_high:
            self._rate_low, self._rate_high = min(rate, self._rate_low), max(rate, self._rate_high)
        if loss.seen < self.judged_after:
            return None
        self._follow(loss)
        if not self._swings or loss.step - self._swings[-1][0] > self.forgotten * self._period():
            self._swings.clear()
            return self.end()
        if len(self._swings) < self.waves or self._rate_high > self.rate_swings * self._rate_low:
            return self.stay()
        sizes = [size for _, size in self._swings]
        if sizes[-1] < self.dying_out * max(sizes):
            return self.end()
        return self.hold(None, lambda: self._describe(loss))

    def _follow(self, loss: Loss) -> None:
        """A turning point is known once nine losses in a row keep clear of nine on its other side."""
        self._ceiling, self._floor = min(self._ceiling, loss.high), max(self._floor, loss.low)
        up, down = loss.low - self._ceiling, self._floor - loss.high
        enough = max(self.share * (loss.start - loss.best), self.share_of_start * loss.start)
        if self._direction <= 0 and up > enough:
            self._turn(loss, 1, up)
        elif self._direction >= 0 and down > enough:
            self._turn(loss, -1, down)

    def _turn(self, loss: Loss, direction: int, size: float) -> None:
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
            return self.longest
        return (self._swings[-1][0] - self._swings[0][0]) / (len(self._swings) - 1)

    def _describe(self, loss: Loss) -> Judgement:
        size = max(size for _, size in self._swings)
        how = f"largest of {len(self._swings)} swings of the loss, one every {self._period():.0f} steps"
        evidence = (
            Evidence("loss", None, size, None, how),
            Evidence("loss", None, loss.level, loss.best, "level now, and at its best"),
        )
        summary = (
            f"The loss swings up and down by {size:.3g} about every {self._period():.0f} steps instead of falling: the "
            "learning rate or the momentum is too high."
        )
        return Judgement(Severity.MODERATE, (), self._swings[0][0], 0.7, summary, evidence)
