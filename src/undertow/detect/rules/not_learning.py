"""OPT005."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.chance_level import chance_level
from undertow.detect.features.constant_prediction import ConstantPrediction
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.layers import LayerKind
from undertow.schema.quantities import LossKind, LossReduction
from undertow.schema.severity import Severity

_OF_CLASSES = (
    LossKind.CROSS_ENTROPY,
    LossKind.NEGATIVE_LOG_LIKELIHOOD,
    LossKind.BINARY_OF_PROBABILITIES,
    LossKind.BINARY_OF_LOGITS,
)

_OF_TARGETS = frozenset({"loss_kind", "loss_classes", "loss_rows"})


class NotLearning:
    """The loss is where it started, after enough steps to know.

    What it sees
    ------------
    A median loss that was never far below the first losses, is within two per cent of them and has no trend, although
    half of the weight matrices have moved by a third of their size; or, whatever the weights did, after 400 steps. A
    classifier whose loss has stayed within a few per cent of that of a guess, or of the best answer that is the same
    for all samples, needs 150 steps.
    Tasks with many classes get more time: half a step per class. So do large tables: until each of their rows can have
    been looked up 25 times. The noise must be small enough to see a change of two per cent.

    Why it is bad
    -------------
    The model is no better than one that ignores its input. This rule does not know why: it is the last resort, for
    faults that no other rule names.

    When it is wrong
    ----------------
    Some tasks (parity, long copying) stand still for a long while before they are learnt. Losses below zero and
    optimizers in turn say nothing about learning and are left out, and so is a warm-up.

    References
    ----------
    Karpathy, "A Recipe for Training Neural Networks", 2019.
    Schoop et al., "UMLAUT: Debugging Deep Learning Programs using Program Structure and Model Behavior", 2021.
    """

    code: ClassVar[str] = "OPT005"
    of_one_training: ClassVar[bool] = True

    def __init__(self) -> None:
        self._condition = Condition("flat")
        self._drift = math.nan
        self._classes = math.nan
        self._guess = math.nan  # what the loss of a guess would be, in this run's units
        self._one_answer = ConstantPrediction()
        self._warm = 0  # steps since the rate last rose
        self._peak = 0.0
        self._layout: LayerIndex | None = None
        self._table = 0  # rows of the largest embedding
        self._rows = math.inf  # samples of a step, when last known

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def attend(self, batch: FrameBatch) -> Iterator[Said]:
        """A loss that has once been clearly below its start, and below that of a guess, is only counted."""
        teaches = batch.with_any(_OF_TARGETS).tolist()
        rates, learnt = batch.scalar("lr", 0.0).tolist(), self._learnt_below()
        for place, loss in enumerate(batch.losses):
            if (
                not (teaches[place] or self._condition.is_open or rates[place] > 1.1 * self._peak or loss is None)
                and loss.best <= min(learnt, thresholds.NOT_LEARNING_BEST * loss.start)
                and loss.positive
                and loss.actors == 1
                and self._layout is batch.layout
            ):
                self._warm += 1
            else:
                yield place, self.observe(batch.view(place))
                learnt = self._learnt_below()

    def _learnt_below(self) -> float:
        """Losses below this are not that of a guess, whatever the loss is now."""
        low, _ = thresholds.NOT_LEARNING_CHANCE
        guesses = [self._guess, *(self._one_answer.losses if self._one_answer.is_of_labels else ())]
        return min([low * one for one in guesses if one == one], default=math.inf)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        rate = view.frame.scalars.get("lr", 0.0)
        if rate > 1.1 * self._peak:  # a warm-up, or the start
            self._peak, self._warm = rate, 0
        self._warm += 1
        classes = view.frame.scalars.get("loss_classes")
        if classes is not None and classes == classes:
            self._classes = classes
        loss = view.loss
        if loss is None or not loss.positive or loss.actors > 1:
            return self._condition.stay()
        patience = max(thresholds.NOT_LEARNING_STEPS, 0.5 * (self._classes if self._classes == self._classes else 0))
        patience = max(patience, thresholds.NOT_LEARNING_VISITS * self._steps_for_all_rows(view))
        self._learn_guess(view)
        if self._warm < patience or loss.seen < patience:
            return ()
        if self._is_at_chance(loss, patience):
            return self._condition.hold("chance", lambda: self._verdict(loss))
        never = loss.best > thresholds.NOT_LEARNING_BEST * loss.start  # what was learnt and lost is OPT001
        flat = never and thresholds.NOT_LEARNING_REMAINING < loss.remaining < thresholds.NOT_LEARNING_ABOVE
        flat &= not loss.falling
        seen = loss.noise < thresholds.NOT_LEARNING_NOISE * loss.start
        if not flat or not seen:
            return self._condition.end()
        if view.row("weight_drift") is not None:
            self._drift = middle(matrices_of(view.layout).values(view, "weight_drift"))
        moved = self._drift > thresholds.NOT_LEARNING_DRIFT
        if not moved and self._warm < thresholds.NOT_LEARNING_ANYWAY * patience / thresholds.NOT_LEARNING_STEPS:
            return self._condition.stay()
        return self._condition.hold(None, lambda: self._verdict(loss))

    def _steps_for_all_rows(self, view: FrameView) -> float:
        """In how many steps every row of the largest table can have been looked up once."""
        if view.layout is not self._layout:
            self._layout = view.layout
            tables: list[int] = [
                one.shape[0] for one in view.layout.layers.parameters if one.kind is LayerKind.EMBEDDING
            ]
            self._table = max(tables, default=0)
        rows = view.scalar("loss_rows")
        if rows > 0:
            self._rows = rows
        return float(self._table / self._rows)

    def _learn_guess(self, view: FrameView) -> None:
        self._one_answer.observe(view)
        if view.scalar("loss_kind") in _OF_CLASSES:
            averaged = view.scalar("loss_reduction") == LossReduction.MEAN
            factor = abs(view.scalar("loss_factor"))
            self._guess = chance_level(view) * (factor if factor > 0 else 1.0) if averaged else math.nan

    def _guesses(self, level: float) -> tuple[float, ...]:
        """Losses of models that have learnt nothing of their inputs."""
        return (self._guess, self._one_answer.loss_near(level)) if self._one_answer.is_of_labels else (self._guess,)

    def _is_at_chance(self, loss: Loss, patience: float) -> bool:
        low, high = thresholds.NOT_LEARNING_CHANCE
        near = any(low * one < loss.level < high * one and loss.best > low * one for one in self._guesses(loss.level))
        seen = loss.noise < thresholds.NOT_LEARNING_CHANCE_NOISE * loss.level and not loss.falling
        return (
            near and seen and self._warm >= thresholds.NOT_LEARNING_AT_CHANCE * patience / thresholds.NOT_LEARNING_STEPS
        )

    def _verdict(self, loss: Loss) -> Verdict:
        how = f"median of the latest losses, and of the first, {loss.seen} steps apart"
        evidence = [Evidence("loss", None, loss.level, loss.start, how)]
        if self._drift == self._drift:
            how = "median distance of the weight matrices from where they were first seen"
            evidence.append(Evidence("weight_drift", None, self._drift, None, how))
        low, high = thresholds.NOT_LEARNING_CHANCE
        guessed = any(low < loss.level / one < high for one in self._guesses(loss.level))
        as_what = "that of a guess" if guessed else "as at the start"
        summary = f"The model does not learn: after {loss.seen} steps the loss is {loss.level:.3g}, {as_what}."
        return Verdict("flat", True, Severity.MODERATE, (), 0, 0.6, summary, tuple(evidence))
