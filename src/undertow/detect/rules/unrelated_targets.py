"""DAT004."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from statistics import fmean, median
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.agreement import Agreement
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.constant_prediction import ConstantPrediction
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.label_noise import LabelNoise
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import LossKind
from undertow.schema.severity import Severity

_OF_TARGETS = frozenset({"loss_kind", "output_miss_rank", "output_agreement"})


class UnrelatedTargets:
    """The model trains as it should, and there is nothing to learn: targets do not seem to follow from inputs.

    What it sees
    ------------
    A cross-entropy that stays at the entropy of the labels, which is what the best answer costs that is the same for
    every sample, although the weights move at a healthy pace and have gone a third of their size; and gradients of
    successive batches that do not agree with each other, as if every batch taught something else. A squared error the
    same way, where it stays at the variance of the targets although the answers differ from sample to sample. Whatever
    the loss: answers that fit their own targets no better than those of other samples of the batch, as a test by
    exchange says at every look, although the weights move well; or that did, and no longer do. And
    labels of which a part is wrong: a classifier with one label for each sample that has learnt a quarter of its task
    or more, and whose wrong answers have the label anywhere among the other classes, in place of next to the first.

    Why it is bad
    -------------
    Labels that were shuffled apart from their inputs, or read from the wrong column, can only be learnt by heart.

    When it is wrong
    ----------------
    It cannot tell wrong labels from a task that is very hard to begin with (parity, a task that needs a longer
    context): confidence is low. Tasks with many classes get half a step per class. Wrong labels that are known by heart
    look like right ones, and below four classes, or a third of the labels, they are not seen. Labels that cannot be
    known by chance (a game of dice) look like wrong ones. Samples that come again within the first steps are known by
    heart so soon that nothing is seen. A relation that is weak but proved by the exchange is left alone, and so are
    returns that a policy earns; a weaker one (rare clicks that follow from little of what is known) may be taken for
    none.

    References
    ----------
    Zhang et al., "Understanding deep learning requires rethinking generalization", 2016 (arXiv 1611.03530).
    Ben Braiek and Khomh, "Testing Feedforward Neural Networks Training Programs", 2022 (arXiv 2204.00694).
    """

    code: ClassVar[str] = "DAT004"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._condition = Condition("chance")
        self._noise = LabelNoise()
        self._agreement = Agreement()
        self._one_answer = ConstantPrediction()
        self._classes = self._drift = math.nan
        self._cosines: deque[float] = deque(maxlen=32)
        self._updates: deque[float] = deque(maxlen=32)
        self._accuracies: deque[float] = deque(maxlen=32)
        self._answers: deque[float] = deque(maxlen=32)  # deviation of the predictions over that of the targets
        self._upset = False
        self._of_samples = False  # one label for each sample, not for each place of a sequence

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def attend(self, batch: FrameBatch) -> Iterator[Said]:
        """Most losses are well below that of one answer for all."""
        teaches, learnt, passed = batch.with_any(_OF_TARGETS).tolist(), self._learnt_below(), 0
        for place, loss in enumerate(batch.losses):
            if teaches[place] or loss is None or not loss.level < learnt or loss.seen <= 10 or self._is_open:
                self._agreement.pass_over(batch, passed, place)
                yield place, self.observe(batch.view(place))
                learnt, passed = self._learnt_below(), place + 1
        self._agreement.pass_over(batch, passed, len(batch))

    def _learnt_below(self) -> float:
        """A loss below this is not at chance, whatever else is known; NaN when that cannot be said."""
        known = self._one_answer.losses
        if math.isnan(known[0]):
            return self._from * self._guess(1.0)
        return self._from * min(known)

    @property
    def _is_open(self) -> bool:
        return self._condition.is_open or self._noise.is_open or self._agreement.is_open

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        said: tuple[Verdict, ...] = ()
        if not (self._condition.is_open or self._noise.is_open):  # one of them is enough
            said = self._agreement.observe(view)
        return said if self._agreement.is_open else (*said, *self._observe_chance(view), *self._noise.observe(view))

    def _observe_chance(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.loss
        if loss is None or loss.actors > 1 or (loss.seen > 50 and math.isnan(self._guess(1.0))):
            return self._condition.stay()
        self._follow_targets(view)
        guess = self._guess(loss.level)
        if loss.seen > 10 and loss.level < self._from * guess:
            return self._condition.end()  # it has learnt something: the usual case, and cheap
        self._upset = self._upset or loss.value > thresholds.LEAPS_TO * loss.first
        if self._upset:
            return self._condition.end()  # a loss that had left for elsewhere came back to chance for another reason
        self._take(view)
        patience = thresholds.CHANCE_STEPS_OF_NUMBERS
        if self._of_classes:
            patience = max(thresholds.CHANCE_STEPS, 0.5 * self._classes)
        if loss.seen < patience or len(self._cosines) < 8 or math.isnan(guess):
            return self._condition.stay()
        at_chance = loss.level < thresholds.CHANCE_TO * guess and not loss.falling
        at_chance &= self._of_classes or median(self._answers or [0.0]) > thresholds.CHANCE_ALIVE
        # A first loss above that of one answer comes down to it by forgetting what the weights began with.
        none_learnt = loss.level > thresholds.CHANCE_NOTHING * guess
        still = none_learnt or loss.gain < thresholds.FLAT_DEVIATIONS or loss.remaining > thresholds.CHANCE_REMAINING
        low, high = thresholds.HEALTHY_UPDATE
        healthy = len(self._updates) > 0 and low < median(self._updates) < high
        if not (at_chance and still and healthy and median(self._cosines) < thresholds.CHANCE_COSINE):
            return self._condition.stay()
        if self._agreement.is_proved:  # a weak relation among much that is chance: there is little to be learnt
            return self._condition.stay()
        if view.row("weight_drift") is not None:
            self._drift = middle(matrices_of(view.layout).values(view, "weight_drift"))
        # Answers no better than one for all need no long way; parity, which is learnt late, has two classes.
        short = none_learnt and not self._classes <= thresholds.CHANCE_FEW_CLASSES
        # Models of sequences learn how often each token comes, and wait there for long before they learn more.
        short &= self._of_samples or not self._of_classes or loss.seen >= 2 * patience
        if not self._drift > (thresholds.CHANCE_DRIFT_OF_NOTHING if short else thresholds.CHANCE_DRIFT):
            return self._condition.stay()
        return self._condition.hold(None, lambda: self._verdict(loss))

    def _guess(self, level: float) -> float:
        """The loss of one answer for all; where labels are not seen, all classes count as equally likely."""
        known = self._one_answer.loss_near(level)
        return math.log(self._classes) if math.isnan(known) and self._classes > 1 else known

    @property
    def _of_classes(self) -> bool:
        return not math.isnan(self._classes)

    @property
    def _from(self) -> float:
        return thresholds.CHANCE_FROM if self._of_classes else thresholds.CHANCE_FROM_OF_NUMBERS

    def _follow_targets(self, view: FrameView) -> None:
        self._one_answer.observe(view)
        self._of_samples |= not math.isnan(view.scalar("output_miss_rank"))
        kind = view.scalar("loss_kind")
        if kind in (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD):
            self._classes = view.scalar("loss_classes")
        elif kind == LossKind.MEAN_SQUARE and view.scalar("target_std") > 0:
            self._answers.append(view.scalar("prediction_std") / view.scalar("target_std"))

    def _take(self, view: FrameView) -> None:
        matrices = matrices_of(view.layout)
        for name, kept in (("gradient_cosine", self._cosines), ("update_ratio", self._updates)):
            if view.row(name) is not None:
                value = middle(matrices.values(view, name))
                if math.isfinite(value):
                    kept.append(value)
        accuracy = view.scalar("output_accuracy")
        if not math.isnan(accuracy):
            self._accuracies.append(accuracy)

    def _verdict(self, loss: Loss) -> Verdict:
        cosine = median(self._cosines)
        guess = f"one answer for all, of {self._classes:.0f} classes" if self._of_classes else "one answer for all"
        evidence = [
            Evidence("loss", None, loss.level, self._guess(loss.level), f"loss, and that of {guess}"),
            Evidence("gradient_cosine", None, cosine, None, "gradients of successive batches hardly agree"),
            Evidence("weight_drift", None, self._drift, None, "median way of the weight matrices: they did move"),
        ]
        if self._accuracies:
            accuracy = fmean(self._accuracies)
            evidence.append(Evidence("output_accuracy", None, accuracy, 1 / self._classes, "and that of a guess"))
        summary = (
            f"After {loss.seen} steps of healthy updates the loss is still that of {guess}: "
            "the targets do not seem to follow from the inputs."
        )
        return Verdict("chance", True, Severity.MODERATE, (), 0, 0.5, summary, tuple(evidence))
