"""OPT007: the learning rate is too high, or a warm-up is missing."""

import math
from collections import deque
from statistics import median

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.constant_prediction import ConstantPrediction
from undertow.detect.features.learning_rate import LearningRate
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.remedies import LOWER_LEARNING_RATE, WARM_UP
from undertow.detect.features.wording import name_layers, of_themselves
from undertow.schema import Evidence, Severity


class LearningRateTooHigh(Condition):
    """Updates are as large as the weights themselves, and the loss is worse than that of the untrained model.

    What it sees: Updates of a fifth of the weights or more, and then a loss well above the first one, or above it for
        three steps at the start; or a leap of the loss at the start and nothing learnt since; or a large update among
        the first, and later the loss of a constant prediction. Or one parameter group with thirty times the rate of the
        median matrix, and a loss that stays where it began.
    Why it is bad: Every step jumps over the minimum, kills units and may end in NaN.
    When it is wrong: Large updates are healthy while the loss falls. Inputs or initial weights that are far off make
        any rate look too high: a first loss far above chance level is left to DAT001 and WGT003, and a loss that leaps
        before any large update to DAT002. The first updates of
        RMSprop are long by design, and adapters are trained with up to 16 times the rate on purpose.
    References: Bengio, "Practical Recommendations for Gradient-Based Training of Deep Architectures", 2012 (arXiv
        1206.5533).
        Karpathy, CS231n notes, "Ratio of weights:updates".
        Wortsman et al., "Small-scale proxies for large-scale Transformer training instabilities", 2023 (arXiv
        2309.14322).
    """

    code, variant, formerly = "OPT007", "learning-rate-too-high", "high group-rate-too-high"
    places = ("rate",)
    stage = Stage.OPTIMIZER
    _rate = Shared(LearningRate)
    meaning = "The learning rate, not the model, decides how this training goes"
    remedies = (LOWER_LEARNING_RATE, WARM_UP)
    above_for = Limit.start(3, "losses in a row above the first one, at the start")
    leaps_to = Limit(1.5, "times the first loss: batch noise of an untrained model is a few per cent")
    sudden = Limit(6.0, "deviations of the loss; healthy ones under a constant rate: below 4, 7 with random depth")
    stuck_after = Limit.learning(25, "losses: what one leap at the start has not undone by then, it has broken")
    stuck_best = Limit(0.93, "of the first loss, for the lowest so far")
    stuck_level = Limit(0.9, "of the first losses, for the latest")
    judged_after = Limit.learning(60, "losses: healthy models stay at their first loss, or predict a constant, too")
    constant_from = Limit(0.98, "of the loss of the best constant prediction")
    constant_to = Limit(1.06, "times the loss of the best constant prediction")
    constant_low = Limit(0.93, "of that loss: what has known more before began anew")
    differing = Limit(0.08, "deviation of predictions over that of targets: more, and they are no constant (DAT004)")
    still_level = Limit(0.93, "of the first losses, for the latest, beside a group that is far ahead")
    still_best = Limit(0.85, "of the first losses, for the lowest: what was learnt and lost is another fault")
    still_noise = Limit(0.02, "of the first losses: more, and a change of a few per cent is not seen")

    def __init__(self) -> None:
        self._raised: deque[int] = deque(maxlen=2)  # steps with a loss well above the first
        self._leapt_early = False  # in the very first steps, after an update that was large
        self._before = math.nan  # the loss before this one
        self._foreign_until = -1  # the loss leapt with no large update before it: not the rate's doing
        self._constant = ConstantPrediction()
        self._spreads: deque[float] = deque(maxlen=32)  # deviation of the predictions over that of the targets

    @property
    def is_calm(self) -> bool:
        return not self._leapt_early and not self.is_open

    def observe(self, view: FrameView) -> Judgement | None:
        rate, loss = self._rate, view.loss
        if "learning-rate-jump" in rate.open_variants:
            return self.stay()
        if loss is None:
            return self._observe_no_loss(view)
        comes_down, self._before = loss.seen <= rate.early and loss.value < self._before, loss.value
        if not loss.positive or loss.actors > 1 or rate.has_implausible_start:
            return self.stay()
        if not self.is_open and "schedule-decays-too-fast" not in rate.open_variants:
            if self._stands_still(loss):
                return self.hold(None, lambda: self._describe_group(view, loss))
            is_constant = self._predicts_a_constant(view, loss)
            if is_constant or self._is_stuck(loss):
                constant = self._constant.loss_near(loss.level) if is_constant else math.nan
                return self.hold(None, lambda: self._describe(view, constant))
        is_early = loss.seen <= rate.lasts
        patience = rate.long_start.covered if rate.long_start.is_long else self.above_for
        stays_above = is_early and rate.above >= patience and loss.low < loss.high and len(rate.large) > 1
        stays_above = stays_above and loss.level > rate.above_first * loss.first
        if loss.value < self.leaps_to * loss.first and not stays_above:
            is_down = loss.high < rate.above_first * loss.first and loss.falling
            return self.end() if is_down else self.stay()
        if not self._is_doing_of_updates(view, loss, stays_above):
            return self.stay()
        self._raised.append(view.step)
        self._leapt_early |= loss.seen <= rate.early
        is_twice = len(self._raised) == 2 and view.step - self._raised[0] <= rate.lasts
        # After a single large update, a leap at the very start that comes down at once is being borne.
        is_twice = is_twice and not (comes_down and len(rate.large) == 1)
        return self.hold(None, lambda: self._describe(view)) if stays_above or is_twice else self.stay()

    def _observe_no_loss(self, view: FrameView) -> Judgement | None:
        """Without a loss that had risen before, or a run that had just begun, NaN has other causes."""
        rate = self._rate
        is_broken = "loss" in view.frame.scalars and not math.isfinite(view.scalar("loss"))
        is_trusted = rate.is_positive and not rate.has_implausible_start and view.step > self._foreign_until
        if is_broken:
            self._stay_foreign(view.step)
        if is_broken and rate.large and is_trusted and (self._raised or rate.above or rate.seen < rate.early):
            return self.hold(None, lambda: self._describe(view))
        return self.stay()

    def _is_doing_of_updates(self, view: FrameView, loss: Loss, stays_above: bool) -> bool:
        """Whether large updates came before a loss that is too high."""
        rate = self._rate
        recent = [step for step, _ in rate.large if step >= view.step - rate.lasts]
        if recent and not stays_above and all(map(rate.long_start.covers, recent)):
            return False
        if not recent:
            if loss.jump > self.sudden and view.step - rate.looked <= rate.lasts:
                self._foreign_until = int(view.step + rate.lasts)
            return False
        if view.step <= self._foreign_until:
            self._stay_foreign(view.step)
            return False
        return True

    def _stay_foreign(self, step: int) -> None:
        """A loss that does not come back from such a leap is not the rate's doing either."""
        if step <= self._foreign_until:
            self._foreign_until = int(step + self._rate.lasts)

    def _is_stuck(self, loss: Loss) -> bool:
        """One leap at the start, after steps as large as the weights, and nothing has been learnt since."""
        if not self._leapt_early or loss.seen < self.stuck_after:
            return False
        is_flat = loss.best > self.stuck_best * loss.first and loss.remaining > self.stuck_level
        return is_flat and not loss.falling

    def _stands_still(self, loss: Loss) -> bool:
        """Nothing is learnt through what a group far ahead of the others has thrown away."""
        if not self._rate.fast.are_long or loss.seen < self.judged_after or loss.falling:
            return False
        flat = loss.level > self.still_level * loss.start and loss.best > self.still_best * loss.start
        return flat and loss.noise < self.still_noise * loss.start

    def _predicts_a_constant(self, view: FrameView, loss: Loss) -> bool:
        """One of the first steps was as large as the weights, and since then only the commonest answer is known."""
        if not self._rate.was_large_early:
            return False
        self._constant.observe(view)
        if view.scalar("target_std") > 0:
            self._spreads.append(view.scalar("prediction_std") / view.scalar("target_std"))
        if loss.seen < self.judged_after or loss.falling or median(self._spreads or [0.0]) > self.differing:
            return False
        one = self._constant.loss_near(loss.level)
        is_near = self.constant_from * one < loss.level < self.constant_to * one
        return is_near and min(loss.low, loss.best) > self.constant_low * one

    def _describe(self, view: FrameView, constant: float = math.nan) -> Judgement:
        rate, loss = self._rate, view.loss
        step, size = max(rate.large, key=lambda entry: entry[1])
        evidence = [
            Evidence("update_ratio", None, size, 0.01, f"median over the weight matrices at step {step}"),
            Evidence("lr", None, rate.history.now, None, f"learning rate at step {view.step}"),
        ]
        harm = "the loss rose above that of the untrained model"
        if constant == constant:
            harm = "now the model predicts nearly the same for every sample"
            how = "median of the latest losses, and the loss of the best constant prediction"
            evidence.append(Evidence("loss", None, loss.level if loss else None, constant, how))
        elif loss is not None:
            how = f"loss at step {view.step}, and at the first step"
            evidence.append(Evidence("loss", None, loss.value, loss.first, how))
        summary = (
            f"The learning rate of {rate.history.peak:.3g} is too high: one step changed the weights by "
            f"{of_themselves(size)} (1% is usual), and {harm}."
        )
        first = min(entry[0] for entry in rate.large)
        return Judgement(Severity.SEVERE, rate.fast.members, first, 0.85, summary, tuple(evidence))

    def _describe_group(self, view: FrameView, loss: Loss) -> Judgement:
        layers, ahead = self._rate.fast.parameters, self._rate.fast.ahead
        how = f"learning rate of its group; that of the others is less than 1/{ahead:.0f} of it"
        evidence = (
            Evidence("optimizer_rate", view.layout.path(layers[0]), self._rate.history.peak, None, how),
            Evidence("loss", None, loss.level, loss.start, f"loss now and at the start, {loss.seen} steps apart"),
        )
        summary = (
            f"The learning rate of {name_layers(view.layout, layers)} is more than {ahead:.0f}× that of the other "
            "parameters, and the loss stands still."
        )
        return Judgement(Severity.SEVERE, layers, max(self._rate.begun, 0), 0.75, summary, evidence)
