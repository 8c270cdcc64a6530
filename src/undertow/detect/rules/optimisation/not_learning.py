"""OPT005: nothing is learnt."""

import math
from collections import deque
from statistics import fmean

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, Limit, Stage
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.constant_prediction import ConstantPrediction
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.module_structure import is_mostly_frozen
from undertow.detect.features.remedies import CHECK_THE_LABELS, OVERFIT_ONE_BATCH
from undertow.schema import Evidence, LayerKind, LossKind, LossReduction, Severity

_AGREEMENTS = 24  # measured steps
_OF_CLASSES = (
    LossKind.CROSS_ENTROPY,
    LossKind.NEGATIVE_LOG_LIKELIHOOD,
    LossKind.BINARY_OF_PROBABILITIES,
    LossKind.BINARY_OF_LOGITS,
)


class NotLearning(Condition):
    """The loss is where it started, or at chance level, after enough steps to know.

    What it sees: A median loss that was never far below the first losses, is within two per cent of them and has no
        trend, although half of the weight matrices have moved by a third of their size; or, whatever the weights did,
        after 400 steps. A classifier whose loss has stayed within a few per cent of chance level, or of the best
        constant prediction, needs 150 steps. Tasks with many classes and large tables get more time. The noise must be
        small enough to see a change of two per cent.
    Why it is bad: The model is no better than one that ignores its input. Why is not known: this is the last resort,
        for faults that nothing else names.
    When it is wrong: Some tasks (parity, long copying) stay on a plateau for a long time before they are learnt. Losses
        below zero and optimizers in turn say nothing about learning and are left out, and so are a warm-up and a model
        most of which is frozen.
    References: Karpathy, "A Recipe for Training Neural Networks", 2019.
        Schoop et al., "UMLAUT: Debugging Deep Learning Programs using Program Structure and Model Behavior", 2021.
    """

    code, variant, formerly = "OPT005", "not-learning", "flat"
    stage, is_vague = Stage.OUTCOME, True
    is_of_one_training = True
    remedies = (OVERFIT_ONE_BATCH, CHECK_THE_LABELS)  # the cause is not known: look, change nothing yet
    judged_after = Limit.learning(60, "losses since the rate rose: long plateaus at the start are healthy for a while")
    steps_to_a_class = Limit(0.5, "of a step to each class: of many classes each is seen rarely")
    visits = Limit(25, "times that every row of a table can have been looked up: what is never seen is not learnt")
    remaining = Limit(0.98, "of the first losses")
    above = Limit(1.15, "times the first losses: far above them, a task becomes harder, and is learnt")
    best = Limit(0.93, "of the first losses, for the lowest: what was learnt and lost is OPT001")
    noise = Limit(0.02, "deviation of a loss over the first losses: more, and a change of 2 % is not seen")
    drift = Limit(0.33, "way of the median matrix over its size; parity of four bits begins to be learnt at 0.3")
    anyway_after = Limit.learning(400, "losses, whatever the weights did")
    agrees = Limit(0.5, "deviations of chance, mean of 24 measured steps: predictions fit their own targets better")
    chance_from = Limit(0.96, "of chance level")
    chance_to = Limit(1.06, "times chance level")
    chance_after = Limit.learning(150, "losses at chance level; healthy classifiers of the zoo have left it after 71")
    chance_noise = Limit(0.04, "deviation of a loss over its level")

    def __init__(self) -> None:
        self._drift = self._classes = math.nan
        self._chance = math.nan  # chance level in this run's units
        self._constant = ConstantPrediction()
        self._warm = 0  # steps since the rate last rose
        self._peak = 0.0
        self._layout: LayerIndex | None = None
        self._table = 0  # rows of the largest embedding
        self._agreements: deque[float] = deque(maxlen=_AGREEMENTS)  # of predictions with their own targets
        self._rows = math.inf  # samples of a step, when last known

    def observe(self, view: FrameView) -> Judgement | None:
        rate = view.frame.scalars.get("lr", 0.0)
        if rate > 1.1 * self._peak:  # a warm-up, or the start
            self._peak, self._warm = rate, 0
        self._warm += 1
        if "output_agreement" in view.frame.scalars:
            self._agreements.append(view.scalar("output_agreement"))
        classes = view.frame.scalars.get("loss_classes")
        if classes is not None and classes == classes:
            self._classes = classes
        loss = view.loss
        if loss is None or not loss.positive or loss.actors > 1:
            return self.stay()
        if is_mostly_frozen(view.layout):
            return self.end()
        if "loss_kind" in view.frame.scalars:
            self._learn_chance(view)
        classes_take = self.steps_to_a_class * self._classes if self._classes == self._classes else 0.0
        patience = max(self.judged_after, classes_take, self.visits * self._steps_for_all_rows(view))
        longer = patience / self.judged_after
        if self._warm < patience or loss.seen < patience:
            return None
        if self._warm >= self.chance_after * longer and self._is_at_chance(loss):
            return self.hold("chance", lambda: self._describe(loss))
        is_flat = loss.best > self.best * loss.start and self.remaining < loss.remaining < self.above
        if not is_flat or loss.falling or not loss.noise < self.noise * loss.start:
            return self.end()
        if view.row("weight_drift") is not None:
            self._drift = middle(matrices_of(view.layout).values(view, "weight_drift"))
        if not self._drift > self.drift and self._warm < self.anyway_after * longer:
            return self.stay()
        if len(self._agreements) == _AGREEMENTS and fmean(self._agreements) > self.agrees:
            return self.end()  # what is learnt first does not show in the loss yet
        return self.hold(None, lambda: self._describe(loss))

    def _steps_for_all_rows(self, view: FrameView) -> float:
        """In how many steps every row of the largest table can have been looked up once."""
        if view.layout is not self._layout:
            self._layout = view.layout
            tables = [one for one in view.layout.layers.parameters if one.kind is LayerKind.EMBEDDING]
            self._table = max((int(one.shape[0]) for one in tables), default=0)
        rows = view.scalar("loss_rows")
        if rows > 0:
            self._rows = rows
        return self._table / self._rows

    def _learn_chance(self, view: FrameView) -> None:
        self._constant.observe(view)
        if view.scalar("loss_kind") in _OF_CLASSES:
            is_mean = view.scalar("loss_reduction") == LossReduction.MEAN
            factor = abs(view.scalar("loss_factor"))
            self._chance = chance_level(view) * (factor if factor > 0 else 1.0) if is_mean else math.nan

    def _chance_levels(self, level: float) -> tuple[float, ...]:
        """Losses of models that have learnt nothing of their inputs."""
        return (self._chance, self._constant.loss_near(level)) if self._constant.is_of_labels else (self._chance,)

    def _is_at_chance(self, loss: Loss) -> bool:
        if loss.falling or not loss.noise < self.chance_noise * loss.level:
            return False
        return any(
            self.chance_from * one < loss.level < self.chance_to * one and loss.best > self.chance_from * one
            for one in self._chance_levels(loss.level)
        )

    def _describe(self, loss: Loss) -> Judgement:
        how = f"median of the latest losses, and of the first, {loss.seen} steps apart"
        evidence = [Evidence("loss", None, loss.level, loss.start, how)]
        if self._drift == self._drift:
            how = "median distance of the weight matrices from where they were first seen"
            evidence.append(Evidence("weight_drift", None, self._drift, None, how))
        levels = self._chance_levels(loss.level)
        is_chance = any(self.chance_from < loss.level / one < self.chance_to for one in levels)
        as_what = "chance level" if is_chance else "as at the start"
        summary = f"Not learning: after {loss.seen} steps the loss is {loss.level:.3g}, {as_what}."
        return Judgement(Severity.MODERATE, (), loss.begun, 0.6, summary, tuple(evidence))
