"""DAT004: the loss stays at chance level although the weights move well."""

import math
from collections import deque
from statistics import fmean, median

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.constant_prediction import ConstantPrediction, commonest_share
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.module_structure import is_mostly_frozen
from undertow.detect.features.remedies import CHECK_THE_LABELS, OVERFIT_ONE_BATCH
from undertow.detect.features.target_agreement import TargetAgreement
from undertow.schema import Evidence, LossKind, Severity


class LossAtChance(Condition):
    """The loss stays at chance level although updates are healthy.

    What it sees: A cross-entropy that stays at the entropy of the labels, which is what the best constant prediction
        costs, although the weights move at a healthy pace and have gone a third of their size; and gradients of
        successive batches that do not agree with each other, as if every batch taught something else. A squared error
        the same way, where it stays at the variance of the targets although the predictions differ from sample to
        sample.
    Why it is bad: Labels that were shuffled apart from their inputs, or read from the wrong column, can only be
        memorised.
    When it is wrong: It cannot tell wrong labels from a task that is very hard to begin with (parity, a task that needs
        a longer context): confidence is low. Tasks with many classes get half a step per class. A relation that is weak
        but proved is left alone, and so are returns that a policy earns, and a model most of which is frozen.
    References: Zhang et al., "Understanding deep learning requires rethinking generalization", 2016 (arXiv 1611.03530).
        Ben Braiek and Khomh, "Testing Feedforward Neural Networks Training Programs", 2022 (arXiv 2204.00694).
    """

    code, variant, formerly = "DAT004", "loss-at-chance", "chance"
    places = ("target",)
    stage, is_standing, is_of_targets = Stage.OUTCOME, True, True
    _agreement = Shared(TargetAgreement)
    meaning = "The model can only memorise such data, and learns nothing that generalises"
    remedies = (CHECK_THE_LABELS, OVERFIT_ONE_BATCH)

    lowest = Limit(0.96, "of the loss of the best constant prediction; below, something was learnt")
    lowest_of_numbers = Limit(0.93, "the same of a squared error, which varies more")
    highest = Limit(1.1, "of the loss of the best constant prediction")
    nothing = Limit(0.985, "of that loss: nothing at all was learnt, so that a shorter way is enough")
    remaining = Limit(0.97, "of the first loss")
    flat = Limit(3.0, "deviations of a single loss, between the medians of the start and of the latest nine")
    leaps_to = Limit(1.5, "times the first loss: it left for elsewhere, and is at chance for another reason")
    patience = Limit.learning(90, "steps; small transformers are at chance for up to 65 before they learn")
    per_class = Limit(0.5, "of a step to each class")
    patience_of_numbers = Limit.learning(120, "steps: sums over long sequences are at chance for long, too")
    cosine = Limit(0.2, "of successive gradients; 0.5 early in healthy classification, 0.1 for random tokens")
    drift = Limit(0.3, "of their size, that the weights moved; healthy classifiers have learnt by a third of this")
    drift_of_nothing = Limit(0.2, "the same, where nothing at all was learnt")
    few_classes = Limit(3, "classes, at most: parity is learnt late and needs the longer way")
    alive = Limit(0.08, "deviation of the predictions over that of the targets: they differ from sample to sample")
    answered = Limit(1.3, "times the largest share that a class can have, of answers that are right")
    slowest, fastest = Limit(3e-4, "update over weight, median"), Limit(0.1, "update over weight, median")

    def __init__(self) -> None:
        self._constant = ConstantPrediction()
        self._classes = self._drift = self._entropy = math.nan
        self._cosines: deque[float] = deque(maxlen=32)
        self._updates: deque[float] = deque(maxlen=32)
        self._accuracies: deque[float] = deque(maxlen=32)
        self._spreads: deque[float] = deque(maxlen=32)  # deviation of the predictions over that of the targets
        self._upset = False
        self._of_samples = False  # one label for each sample, not for each place of a sequence

    def observe(self, view: FrameView) -> Judgement | None:
        if "unrelated-targets" in self._agreement.open_variants:
            return None
        loss = view.loss
        if is_mostly_frozen(view.layout):
            return self.end()
        if loss is None or loss.actors > 1 or (loss.seen > 50 and math.isnan(self._chance(1.0))):
            return self.stay()
        self._follow_targets(view)
        chance = self._chance(loss.level)
        if loss.seen > 10 and loss.level < self._from * chance:
            return self.end()  # it has learnt something: the usual case, and cheap
        self._upset = self._upset or loss.value > self.leaps_to * loss.first
        if self._upset:
            return self.end()  # a loss that had left for elsewhere came back to chance for another reason
        self._take(view)
        patience = self.patience_of_numbers
        if self._of_classes:
            patience = max(self.patience, self.per_class * self._classes)
        if loss.seen < patience or len(self._cosines) < 8 or math.isnan(chance):
            return self.stay()
        at_chance = loss.level < self.highest * chance and not loss.falling
        at_chance &= self._of_classes or median(self._spreads or [0.0]) > self.alive
        # A first loss above that of a constant prediction comes down to it by forgetting what the weights began with.
        none_learnt = loss.level > self.nothing * chance
        still = none_learnt or loss.gain < self.flat or loss.remaining > self.remaining
        healthy = len(self._updates) > 0 and self.slowest < median(self._updates) < self.fastest
        if not (at_chance and still and healthy and median(self._cosines) < self.cosine):
            return self.stay()
        if self._answers_well():  # the loss holds more than this error, and only the sum is at its level
            return self.stay()
        if self._agreement.is_proved:  # a weak relation among much that is chance: there is little to be learnt
            return self.stay()
        if view.row("weight_drift") is not None:
            self._drift = middle(matrices_of(view.layout).values(view, "weight_drift"))
        # Predictions no better than a constant need no long way; parity, which is learnt late, has two classes.
        short = none_learnt and not self._classes <= self.few_classes
        # Models of sequences learn how often each token comes, and wait there for long before they learn more.
        short &= self._of_samples or not self._of_classes or loss.seen >= 2 * patience
        if not self._drift > (self.drift_of_nothing if short else self.drift):
            return self.stay()
        return self.hold(None, lambda: self._describe(loss))

    def _chance(self, level: float) -> float:
        """The loss of the best constant prediction; where labels are not seen, all classes count as equally likely."""
        known = self._constant.loss_near(level)
        return math.log(self._classes) if math.isnan(known) and self._classes > 1 else known

    def _answers_well(self) -> bool:
        if not self._accuracies or not self._classes > 1:
            return False
        return fmean(self._accuracies) > self.answered * commonest_share(self._entropy, int(self._classes))

    @property
    def _of_classes(self) -> bool:
        return not math.isnan(self._classes)

    @property
    def _from(self) -> float:
        return self.lowest if self._of_classes else self.lowest_of_numbers

    def _follow_targets(self, view: FrameView) -> None:
        self._constant.observe(view)
        self._of_samples |= not math.isnan(view.scalar("output_miss_rank"))
        kind = view.scalar("loss_kind")
        if kind in (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD):
            self._classes, self._entropy = view.scalar("loss_classes"), view.scalar("label_entropy_pooled")
        elif kind == LossKind.MEAN_SQUARE and view.scalar("target_std") > 0:
            self._spreads.append(view.scalar("prediction_std") / view.scalar("target_std"))

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

    def _describe(self, loss: Loss) -> Judgement:
        cosine = median(self._cosines)
        of = f"a constant prediction, of {self._classes:.0f} classes" if self._of_classes else "a constant prediction"
        evidence = [
            Evidence("loss", None, loss.level, self._chance(loss.level), f"loss, and that of {of}"),
            Evidence("gradient_cosine", None, cosine, None, "gradients of successive batches hardly agree"),
            Evidence("weight_drift", None, self._drift, None, "median matrix: the weights moved"),
        ]
        if self._accuracies:
            accuracy = fmean(self._accuracies)
            evidence.append(Evidence("output_accuracy", None, accuracy, 1 / self._classes, "and at chance level"))
        summary = (
            f"After {loss.seen} steps of healthy updates the loss is {loss.level:.3g}, still that of {of}: the labels "
            "look unrelated to the inputs."
        )
        return Judgement(Severity.MODERATE, (), loss.begun, 0.5, summary, tuple(evidence))
