"""OPT007."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import ClassVar

import numpy as np

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.constant_prediction import ConstantPrediction
from undertow.detect.features.fast_group import FastGroup
from undertow.detect.features.long_first_steps import LongFirstSteps
from undertow.detect.features.loss_trend import Loss, actor_of
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.rate_history import RateHistory
from undertow.detect.features.wording import name_layers, of_themselves
from undertow.detect.rate_schedule import RateSchedule
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

_SETTINGS = frozenset({"optimizer", "initial_lr"})


class UnsuitableRate:
    """The learning rate, or its schedule, cannot work.

    What it sees
    ------------
    Seven things, each with the loss as a second witness. The rate has fallen to next to nothing within few steps while
    there is much left to learn (a schedule meant for epochs, stepped with every batch). The rate leaps far above what
    it had been, and the loss follows. Updates as large as the weights themselves, and then a loss well above that of
    the untrained model, or above it for three steps at the start, or once at the start with nothing learnt since, or
    one of the first updates so large, and later the loss of a model that gives every sample the same answer:
    the rate is too high, or a warm-up is missing. Updates of less than a fifty-thousandth of the weights from the first
    step on while the loss stands still: it is too low. A schedule that never gives more than a fiftieth of the rate
    that the optimizer was made with: as one that returns a rate where a factor belongs, so that the two are multiplied.
    Of two optimizers in turn, that the one with a ten times higher rate (three times, where it has made steps of a
    tenth of its weights) has won: its loss is next to nothing, or low while the other's has grown; at any rate, where
    next to nothing is left of its loss and the other's has risen. And one group with thirty times the rate of the
    others, while nothing is learnt.

    Why it is bad
    -------------
    Too high, and every step jumps over the minimum, kills units and may end in NaN; too low, or gone too soon, and
    the model stays as it was initialised.

    When it is wrong
    ----------------
    Large updates are healthy while the loss falls, and so is a rate of nearly zero at the end of a schedule. Inputs or
    initial weights that are far off make any rate look too high: a first loss far above that of a guess is left to
    DAT001 and WGT003, and a loss that leaps before any large update to DAT002. Warm-up and restarts up to an earlier
    peak are not reported.

    References
    ----------
    Bengio, "Practical Recommendations for Gradient-Based Training of Deep Architectures", 2012 (arXiv 1206.5533).
    Karpathy, CS231n notes, "Ratio of weights:updates".
    Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023 (arXiv 2309.14322).
    """

    code: ClassVar[str] = "OPT007"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._rates: dict[int, RateHistory] = {}
        self._schedule, self._leap = RateSchedule(), Condition("leap")
        self._high, self._low, self._unequal = Condition("high"), Condition("low"), Condition("unequal")
        self._losses: dict[int, Loss] = {}  # the latest of each actor
        self._kinds: dict[int, float] = {}
        self._stepped: dict[int, tuple[int, ...]] = {}  # the matrices that each actor moves
        self._paces: dict[int, float] = {}  # by how much of themselves, at the latest measured step
        self._longest: dict[int, float] = {}  # the longest of these so far
        self._fast = FastGroup()
        self._won_for = 0
        self._large: deque[tuple[int, float]] = deque(maxlen=8)  # steps whose update was large
        self._raised: deque[int] = deque(maxlen=2)  # steps with a loss well above the first
        self._leapt_early = False  # in the very first steps, after an update that was large
        self._large_early = False  # one of the first updates was large
        self._one_answer = ConstantPrediction()
        self._answers: deque[float] = deque(maxlen=32)  # deviation of the predictions over that of the targets
        self._above = 0  # losses in a row that were a little above it
        self._long_start = LongFirstSteps()
        self._foreign_until = -1  # the loss leapt with no large update before it: not the rate's doing
        self._implausible_start = False
        self._largest = 0.0  # update over weight, of any matrix at any step
        self._measured = 0
        self._looked = -(10**9)  # the latest step whose updates were measured
        self._level_before_leap = math.nan
        self._positive = False
        self._begun: int | None = None
        self._seen = 0
        self._clipped = 1.0

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    @property
    def resting(self) -> bool:
        """The rate has been the same for long, and the model bears it."""
        if len(self._rates) != 1 or not self._largest > thresholds.SMALL_UPDATE:
            return False
        (history,) = self._rates.values()
        conditions = (self._leap, self._high, self._low, self._unequal)
        suspect = self._leapt_early or self._large_early or self._implausible_start or bool(self._fast.parameters)
        calm = history.is_steady and self._schedule.rests(history)
        return calm and not suspect and not any(one.is_open for one in conditions)

    def news(self, batch: FrameBatch) -> Flags:
        """All but steps at the same rate as before with a loss that has come down."""
        if batch.frames_with("update") != list(range(len(batch))):
            return np.ones(len(batch), bool)
        rates, now = batch.scalar("lr"), [history.now for history in self._rates.values()]
        quiet = rates == np.concatenate((now[:1] or [math.nan], rates[:-1]))
        quiet &= ~batch.with_any(_SETTINGS) & ~batch.skipped
        return ~(quiet & [self._has_come_down(loss) for loss in batch.losses])

    @staticmethod
    def _has_come_down(loss: Loss | None) -> bool:
        if loss is None or not loss.positive or loss.actors > 1:
            return False
        return loss.seen > max(thresholds.ADDED_SEEN_EARLY, thresholds.FALLING_SEEN) and loss.value < 0.5 * loss.first

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        (history,) = self._rates.values()
        history.go_on(last - first - 1)
        clipped = batch.scalar("clip_coefficient")[first:last]
        clipped = clipped[~np.isnan(clipped)]
        self._clipped = float(clipped[-1]) if len(clipped) else self._clipped
        self.observe(batch.view(last - 1))
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        rate = view.frame.scalars.get("lr")
        if rate is None:
            return ()
        actor = actor_of(view.frame)
        history = self._rates.get(actor)
        if history is None:
            history = self._rates[actor] = RateHistory()
        history.add(rate, view.step)
        loss = view.loss
        self._fast.observe(view)
        self._long_start.observe(view)
        if self._begun is None:
            self._begun = view.step
        if loss is not None:
            self._positive, self._seen = loss.positive, loss.seen
        self._clipped = view.frame.scalars.get("clip_coefficient", self._clipped)
        if history.leap_step == view.step:
            self._level_before_leap = loss.level if loss is not None else math.nan
        # What the loss of this step shows was caused by updates before it.
        said = (
            *self._observe_leap(view, history, loss),
            *self._observe_high(view, history, loss),
        )
        if not view.skipped and rate > 0:
            self._take_updates(view)
        if loss is None:
            return said
        if loss.actors == 2:
            self._losses[actor] = loss
            if not math.isnan(kind := view.scalar("loss_kind")):
                self._kinds[actor] = kind
            pace = middle(matrices_of(view.layout).values(view, "update_ratio"))
            if pace > 0:
                self._paces[actor] = pace
                self._longest[actor] = max(pace, self._longest.get(actor, 0.0))
            if actor not in self._stepped and view.row("update_norm") is not None:
                matrices = matrices_of(view.layout)
                self._stepped[actor] = tuple(matrices.ids[matrices.values(view, "update_norm") > 0].tolist())
            return (*said, *self._observe_unequal(view))
        said = (*said, *self._schedule.observe(view, history, loss, self._largest))
        return (*said, *self._observe_low(view, history, loss))

    def _take_updates(self, view: FrameView) -> None:
        loss = view.loss
        if view.row("update_ratio") is not None:
            self._looked = view.step
        too_low_is_out = self._largest > thresholds.SMALL_UPDATE
        if view.row("update_ratio") is None or (too_low_is_out and loss is not None and loss.value < 0.5 * loss.first):
            return  # a model that has learnt this much bears its rate
        ratios = matrices_of(view.layout).update_ratios(view)
        size = middle(ratios)
        if math.isnan(size):
            return
        self._measured += 1
        self._largest = max(self._largest, float(np.fmax.reduce(ratios)))
        if size > thresholds.LARGE_UPDATE:
            self._large.append((view.step, size))
            self._large_early |= self._seen <= thresholds.LARGE_UPDATE_LASTS

    # -- a leap -------------------------------------------------------------------------------------------

    def _observe_leap(self, view: FrameView, history: RateHistory, loss: Loss | None) -> tuple[Verdict, ...]:
        since = view.step - history.leap_step
        if history.leap_step < 0 or since <= 0:
            return ()
        if self._leap.is_open:
            # It holds for as long as the rate stays up there.
            if self._leap.verdict is None or not history.now > history.peak / 2:
                return self._leap.end()
            verdict, raised = self._leap.verdict, self._raised_layers(view)
            return self._leap.hold(raised, lambda: replace(verdict, layers=raised or verdict.layers))
        if since > thresholds.LEAP_PATIENCE:
            return ()
        if loss is None:
            broken = not math.isfinite(view.scalar("loss")) and "loss" in view.frame.scalars
        elif loss.positive:
            broken = loss.jump > thresholds.LEAP_JUMP and loss.value > thresholds.LEAPS_TO * self._level_before_leap
        else:
            broken = loss.jump > 2 * thresholds.LEAP_JUMP
        if not broken:
            return ()
        return self._leap.hold(self._raised_layers(view), lambda: self._verdict_leap(view, history))

    def _verdict_leap(self, view: FrameView, history: RateHistory) -> Verdict:
        before = history.peak / history.leap_factor
        evidence = [
            Evidence("lr", None, history.now, before, f"learning rate since step {history.leap_step}, and before")
        ]
        if view.loss is not None:
            how = f"loss at step {view.step}, and before the leap"
            evidence.append(Evidence("loss", None, view.loss.value, self._level_before_leap, how))
        summary = (
            f"The learning rate leapt from {before:.3g} to {history.now:.3g} at step {history.leap_step}, "
            "and the loss followed: look at the schedule."
        )
        layers = self._raised_layers(view)
        return Verdict("leap", True, Severity.SEVERE, layers, history.leap_step, 0.93, summary, tuple(evidence))

    def _raised_layers(self, view: FrameView) -> tuple[int, ...]:
        """What the optimizer moves whose rate it was, where there are two; else the group that is far ahead, if any."""
        return self._stepped.get(actor_of(view.frame), ()) if len(self._stepped) == 2 else self._fast.members

    # -- too high -----------------------------------------------------------------------------------------

    def _observe_high(self, view: FrameView, history: RateHistory, loss: Loss | None) -> tuple[Verdict, ...]:
        if self._leap.is_open:
            return self._high.stay()
        if loss is None:
            broken = not math.isfinite(view.scalar("loss")) and "loss" in view.frame.scalars
            trusted = self._positive and not self._implausible_start and view.step > self._foreign_until
            if broken:
                self._stay_foreign(view.step)
            # Without a loss that had risen before, or a run that had just begun, NaN has other causes.
            if broken and self._large and trusted and (self._raised or self._above or self._seen < 5):
                return self._high.hold(None, lambda: self._verdict_high(view, history))
            return self._high.stay()
        if loss.seen <= thresholds.ADDED_SEEN_EARLY:
            guess = chance_level(view)
            self._implausible_start |= loss.first > thresholds.IMPLAUSIBLE_START * guess
        if not loss.positive or loss.actors > 1 or self._implausible_start:
            return self._high.stay()
        self._above = self._above + 1 if loss.value > thresholds.ABOVE_FIRST * loss.first else 0
        early = loss.seen <= thresholds.LARGE_UPDATE_LASTS
        patience = thresholds.ABOVE_FOR_AT_LENGTH if self._long_start.is_long else thresholds.ABOVE_FOR
        stays = early and self._above >= patience and loss.low < loss.high
        stays = stays and loss.level > thresholds.ABOVE_FIRST * loss.first and len(self._large) > 1
        if self._is_stuck(loss) and not self._schedule.is_gone:
            return self._high.hold(None, lambda: self._verdict_high(view, history))
        if self._is_held_up(loss) and not self._schedule.is_gone:
            return self._high.hold(None, lambda: self._verdict_held_up(view, history, loss))
        if self._answers_all_alike(view, loss) and not self._schedule.is_gone:
            one_answer = self._one_answer.loss_near(loss.level)
            return self._high.hold(None, lambda: self._verdict_high(view, history, one_answer))
        if loss.value < thresholds.LEAPS_TO * loss.first and not stays:
            if self._high.is_open and loss.high < thresholds.ABOVE_FIRST * loss.first and loss.falling:
                return self._high.end()
            return self._high.stay()
        recent = [step for step, _ in self._large if step >= view.step - thresholds.LARGE_UPDATE_LASTS]
        if recent and not stays and all(map(self._long_start.covers, recent)):
            return self._high.stay()
        if not recent:
            if loss.jump > thresholds.LEAP_JUMP and view.step - self._looked <= thresholds.LARGE_UPDATE_LASTS:
                self._foreign_until = view.step + thresholds.LARGE_UPDATE_LASTS
            return self._high.stay()
        if view.step <= self._foreign_until:
            self._stay_foreign(view.step)
            return self._high.stay()
        self._raised.append(view.step)
        self._leapt_early |= loss.seen <= thresholds.ADDED_SEEN_EARLY
        twice = len(self._raised) == 2 and view.step - self._raised[0] <= thresholds.LARGE_UPDATE_LASTS
        if not stays and not twice:
            return self._high.stay()
        return self._high.hold(None, lambda: self._verdict_high(view, history))

    def _is_stuck(self, loss: Loss) -> bool:
        """One leap at the start, after steps as large as the weights, and nothing has been learnt since."""
        if not self._leapt_early or loss.seen < thresholds.STUCK_AFTER or self._high.is_open:
            return False
        still = loss.best > thresholds.NOT_LEARNING_BEST * loss.first and loss.remaining > thresholds.FALLEN_REMAINING
        return still and not loss.falling

    def _answers_all_alike(self, view: FrameView, loss: Loss) -> bool:
        """One of the first steps was as large as the weights, and since then only the commonest answer is known."""
        if not self._large_early or self._high.is_open:
            return False
        self._one_answer.observe(view)
        if view.scalar("target_std") > 0:
            self._answers.append(view.scalar("prediction_std") / view.scalar("target_std"))
        if loss.seen < thresholds.ONE_ANSWER_AFTER or loss.falling:
            return False
        one = self._one_answer.loss_near(loss.level)
        near = thresholds.ONE_ANSWER_FROM * one < loss.level < thresholds.ONE_ANSWER_TO * one
        if median(self._answers or [0.0]) > thresholds.CHANCE_ALIVE:
            return False  # answers differ and are no better for it: DAT004
        # What has known more before began anew, with another model or another task.
        return near and min(loss.low, loss.best) > thresholds.ONE_ANSWER_LOW * one

    def _is_held_up(self, loss: Loss) -> bool:
        """A group far ahead of the others, all of which learn nothing: what it holds has long been thrown away."""
        if not self._fast.parameters or loss.seen < thresholds.NOT_LEARNING_STEPS or self._high.is_open:
            return False
        still = loss.level > thresholds.NOT_LEARNING_BEST * loss.start and loss.best > thresholds.BACK_TO * loss.start
        return still and not loss.falling and loss.noise < thresholds.NOT_LEARNING_NOISE * loss.start

    def _verdict_held_up(self, view: FrameView, history: RateHistory, loss: Loss) -> Verdict:
        layers = self._fast.parameters
        path = view.layout.path(layers[0])
        how = f"learning rate of its group; that of the others is less than 1/{thresholds.GROUP_AHEAD:.0f} of it"
        evidence = (
            Evidence("optimizer_rate", path, history.peak, None, how),
            Evidence("loss", None, loss.level, loss.start, f"loss now and at the start, {loss.seen} steps apart"),
        )
        summary = (
            f"The learning rate of {name_layers(view.layout, layers)} is far above that of the others, and the loss "
            "stands still."
        )
        return Verdict("high", True, Severity.SEVERE, layers, self._begun or 0, 0.75, summary, evidence)

    def _stay_foreign(self, step: int) -> None:
        """A loss that does not come back from such a leap is not the rate's doing either."""
        if step <= self._foreign_until:
            self._foreign_until = step + thresholds.LARGE_UPDATE_LASTS

    def _verdict_high(self, view: FrameView, history: RateHistory, one_answer: float = math.nan) -> Verdict:
        step, size = max(self._large, key=lambda entry: entry[1])
        evidence = [
            Evidence("update_ratio", None, size, 0.01, f"median over the weight matrices at step {step}"),
            Evidence("lr", None, history.now, None, f"learning rate at step {view.step}"),
        ]
        harm = "the loss rose above that of the untrained model"
        if one_answer == one_answer:
            harm = "now the model gives nearly the same answer to every sample"
            how = "median of the latest losses, and the loss of the best answer that is the same for all"
            evidence.append(Evidence("loss", None, view.loss.level if view.loss else None, one_answer, how))
        elif view.loss is not None:
            how = f"loss at step {view.step}, and at the first step"
            evidence.append(Evidence("loss", None, view.loss.value, view.loss.first, how))
        summary = (
            f"The learning rate of {history.peak:.3g} is too high: one step changed the weights by "
            f"{of_themselves(size)}, and {harm}."
        )
        first = min(entry[0] for entry in self._large)
        return Verdict("high", True, Severity.SEVERE, self._fast.members, first, 0.85, summary, tuple(evidence))

    # -- too low ------------------------------------------------------------------------------------------

    def _observe_low(self, view: FrameView, history: RateHistory, loss: Loss) -> tuple[Verdict, ...]:
        tiny = self._largest < thresholds.TINY_UPDATE
        small = self._largest < thresholds.SMALL_UPDATE and loss.seen >= thresholds.SMALL_UPDATE_STEPS
        small = small and loss.noise < thresholds.SMALL_UPDATE_NOISE * abs(loss.start)
        if not (tiny or small) or not self._largest or history.risen:
            return self._low.end()
        enough = self._measured >= thresholds.TINY_UPDATE_FRAMES and loss.seen >= thresholds.TINY_UPDATE_STEPS
        still = loss.gain < thresholds.FLAT_DEVIATIONS and not loss.remaining < 0.98
        if (
            not enough
            or not still
            or self._clipped < 0.1  # GRD010
            or loss.actors > 1
            or self._schedule.is_gone
            or history.now < history.first / 2
        ):
            return self._low.stay()
        return self._low.hold(None, lambda: self._verdict_low(view, history, loss))

    def _verdict_low(self, view: FrameView, history: RateHistory, loss: Loss) -> Verdict:
        evidence = (
            Evidence("update_ratio", None, self._largest, 1e-3, "largest update over weight of any matrix so far"),
            Evidence("lr", None, history.now, None, f"learning rate at step {view.step}"),
            Evidence("loss", None, loss.level, loss.start, f"loss now and at the start, {loss.seen} steps apart"),
        )
        summary = (
            f"The learning rate of {history.now:.3g} is too low: no step changes a weight by more than "
            f"{self._largest:.1g} of itself, and the loss stands still."
        )
        confidence = 0.9 if self._largest < thresholds.TINY_UPDATE else 0.7
        severity = Severity.SEVERE if self._largest < thresholds.TINY_UPDATE else Severity.MODERATE
        return Verdict("low", True, severity, (), self._begun or 0, confidence, summary, evidence)

    # -- two optimizers -----------------------------------------------------------------------------------

    def _observe_unequal(self, view: FrameView) -> tuple[Verdict, ...]:
        if len(self._losses) != 2 or len(self._rates) != 2 or self._losses.keys() != self._rates.keys():
            return ()
        slow, fast = sorted(self._rates, key=lambda actor: self._rates[actor].now)
        # A rate that is a few times as high is usual, unless it makes steps of a tenth of the weights.
        long = self._longest.get(fast, 0.0) > thresholds.LARGE_STEP_BURST
        factor = thresholds.UNEQUAL_RATES_OF_LONG_STEPS if long else thresholds.UNEQUAL_RATES
        unequal = self._rates[fast].now > factor * self._rates[slow].now > 0
        winner, loser = self._losses[fast], self._losses[slow]
        grown = winner.remaining < thresholds.WON_TO and loser.remaining > thresholds.LOST_TO
        won = unequal and (grown or winner.remaining < thresholds.WON_ALONE_TO)
        if not won:
            slow, fast = sorted(self._losses, key=lambda actor: self._losses[actor].remaining < thresholds.WON_WHOLLY)
            won = self._has_won_wholly(slow, fast)
        self._won_for = self._won_for + 1 if won else 0
        if self._won_for < thresholds.WON_FOR:
            return self._unequal.stay() if unequal or won else self._unequal.end()
        return self._unequal.hold(None, lambda: self._verdict_unequal(view, slow, fast))

    def _has_won_wholly(self, loser: int, winner: int) -> bool:
        """Nothing is left of its loss, and the other's rose: a task that is learnt leaves the other's alone."""
        lost = self._losses[loser]
        risen = lost.level - lost.start > thresholds.WON_RISE * max(abs(lost.start), lost.noise)
        of_numbers = self._kinds.get(winner) in (LossKind.MEAN_SQUARE, LossKind.ABSOLUTE)  # a critic's of values
        return risen and self._losses[winner].remaining < thresholds.WON_WHOLLY and not of_numbers

    def _verdict_unequal(self, view: FrameView, slow: int, fast: int) -> Verdict:
        winner, loser = self._losses[fast], self._losses[slow]
        evidence = (
            Evidence("lr", None, self._rates[fast].now, self._rates[slow].now, "rates of the two optimizers in turn"),
            Evidence("loss", None, winner.level, winner.start, "of the faster one, now and at the start"),
            Evidence("loss", None, loser.level, loser.start, "of the slower one, now and at the start"),
        )
        factor = self._rates[fast].now / self._rates[slow].now
        better = f"a learning rate {factor:.0f} times as high" if factor > 1 else "the easier task"
        summary = (
            f"One of two optimizers in turn has {better} and has won: its loss fell to {winner.level:.2g}, and the "
            f"other (at {loser.level:.2g}) has nothing left to follow."
        )
        first = view.step - 2 * self._won_for
        layers = self._stepped.get(fast, ())
        if self._paces.get(slow, 1.0) < thresholds.TINY_UPDATE:  # it is not that the other one is fast
            layers = self._stepped.get(slow, ())
            summary = (
                f"One of two optimizers in turn has a learning rate {factor:.0f} times as low and hardly moves: the "
                f"other one has won, its loss fell to {winner.level:.2g}."
            )
        return Verdict("unequal", True, Severity.MODERATE, layers, max(first, 0), 0.75, summary, evidence)
