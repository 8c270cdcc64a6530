"""UPD002: steps so small that nothing is learnt."""

import math

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Stage
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.progress import has_learnt, starts_low
from undertow.detect.features.remedies import RAISE_LEARNING_RATE
from undertow.schema import Evidence, Severity


class SmallUpdates(Condition):
    """Steps are so small that nothing is learnt.

    What it sees: The length of every update over the length of the weight it changes. Reported when nine tenths of the
        weight matrices move by less than three parts in 100,000 per step, at eight measured steps, while they have a
        gradient and the loss has made no progress; or by less than 1.5 in 10,000 over forty steps, when the gradients
        of successive steps agree besides, so that there is a direction to follow.
    Why it is bad: At this speed a weight needs ten thousands of steps to change by its own size. The run costs what a
        good one costs and learns nothing. Too small a learning rate is the usual cause, a schedule that decays too
        soon, a clipping threshold that is too low or an optimizer setting that defeats it the others.
    When it is wrong: Not during a warm-up, nor for a model that has learnt already, nor at the end of a schedule, nor
        for a model that starts far below chance level, as a pretrained one does. Layers that are slow by design while
        others are not are not counted.
    References: Karpathy, CS231n course notes, "Babysitting the learning process": updates of about a thousandth of
        the weight.
    """

    code, variant, formerly = "UPD002", "small-updates", "steps"
    places = ("rate",)
    stage = Stage.STEP
    pace = ("update", 5)
    meaning = "The weights hardly move, so nothing is learned within this run"
    remedies = (RAISE_LEARNING_RATE,)
    tiny = Limit(3e-5, "of the weight per step; 0.001 is usual")
    tiny_frames = Limit.chance(8, "measured steps in a row")
    tiny_few = Limit.chance(3, "measured steps that are enough over `tiny_steps`, where measurements are rare")
    tiny_steps = Limit.plan(20, "steps in which the learning rate has not risen: no warm-up rests for so long")
    small = Limit(1.5e-4, "of the weight per step, where there is a direction to follow")
    small_frames = Limit.chance(10, "measured steps in a row")
    small_steps = Limit.sample(40, "steps over which these are spread")
    agreement = Limit(0.3, "cosine of successive gradients; half of all healthy runs have less")

    def __init__(self) -> None:
        self._tiny = self._small = 0  # measured steps in a row
        self._since = 0
        self._speed = math.nan  # update over weight; nine tenths of the matrices move by less
        self._agreement = 0.0  # running mean of the cosine of successive gradients
        self._rate = math.nan
        self._moved = False  # some matrix has moved at some time; otherwise UPD003 speaks

    def observe(self, view: FrameView) -> Judgement | None:
        rate, before = view.scalar("lr"), self._rate
        if not math.isnan(rate):
            self._rate = rate
        matrices = matrices_of(view.layout)
        if view.skipped or not len(matrices):
            return None
        if view.ids("gradient") is not None:
            cosine = middle(matrices.values(view, "gradient_cosine"))
            self._agreement += 0.0 if math.isnan(cosine) else 0.2 * (cosine - self._agreement)
        if rate > before or has_learnt(view.loss) or starts_low(view):
            self._tiny = self._small = 0
            return self.end()
        if view.ids("update") is not None:
            self._measure(view)
        if self._small == 0:
            return self.end()
        steps = view.step - self._since
        slow = self._small >= self.small_frames and steps >= self.small_steps and self._agreement > self.agreement
        rarely = self._tiny >= self.tiny_few and steps >= self.tiny_steps
        if not slow and not rarely and self._tiny < self.tiny_frames:
            return self.stay()
        return self.hold(True, lambda: self._describe(view))

    def _measure(self, view: FrameView) -> None:
        """Of matrices of which the update is known, and the gradient is not known to be zero."""
        matrices = matrices_of(view.layout)
        ratios = matrices.values(view, "update_ratio")
        chosen = np.isfinite(ratios)
        if view.ids("gradient") is not None:
            chosen &= ~(matrices.values(view, "gradient_norm") == 0)
        if not chosen.any():
            return
        ordered = np.sort(ratios[chosen])
        speed = self._speed = float(ordered[math.ceil(0.9 * (len(ordered) - 1))])
        self._moved |= speed > 0
        if speed >= self.small or not self._moved:
            self._tiny = self._small = 0
            return
        if self._small == 0:
            self._since = view.step
        self._small += 1
        self._tiny = self._tiny + 1 if speed < self.tiny else 0

    def _describe(self, view: FrameView) -> Judgement:
        speed = self._speed
        evidence = [
            Evidence("update_ratio", None, speed, 1e-3,
                     f"update over weight at step {view.step}; 90% of the matrices move by less"),
            Evidence("gradient_cosine", None, self._agreement, None,
                     "agreement of successive gradients: the direction is there"),
        ]  # fmt: skip
        if not math.isnan(self._rate):
            evidence.append(Evidence("lr", None, self._rate, None, "the learning rate"))
        if view.loss is not None:
            evidence.append(Evidence("loss", None, view.loss.level, view.loss.start, "loss now, and at the start"))
        summary = (
            f"Updates are at most {speed:.1g} of the weights per step (1e-4 to 1e-2 is usual): nothing can be learned."
        )
        confidence = 0.9 if speed < self.tiny else 0.7
        return Judgement(Severity.SEVERE, (), self._since, confidence, summary, tuple(evidence))
