"""Whether answers fit their own targets better than those of other samples: if they never do, there is no relation."""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean

import numpy as np

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.view import FrameView
from undertow.detect.features.loss_trend import Loss
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.layers import LayerKind
from undertow.schema.severity import Severity

_HOW = "how much better answers fit their own targets than those of other samples, in deviations of chance"


class Agreement:
    """By the test of every look (`output_agreement`): around 0 without a relation, and soon far above 0 with one,
    whatever the loss. Samples that come again are known by heart in time, so that a slow rise proves nothing."""

    def __init__(self) -> None:
        self._never, self._lost = Condition("unrelated"), Condition("lost")
        self._latest: deque[tuple[int, float]] = deque(maxlen=limit.AGREEMENT_LOOKS)
        self._paces: deque[float] = deque(maxlen=limit.AGREEMENT_LOOKS)
        self._found = False  # more than chance, at some time
        self._best = 0.0  # mean of a few looks in a row
        self._drift = math.nan
        self._task: tuple[float, float] | None = None  # kind of the loss, and its classes

    @property
    def is_open(self) -> bool:
        return self._never.is_open or self._lost.is_open

    @property
    def is_proved(self) -> bool:
        """Answers fit their own targets better, if only by a little, at looks enough to be sure of it."""
        looks = [deviations for _, deviations in self._latest]
        return len(looks) == limit.AGREEMENT_LOOKS and fmean(looks) > limit.AGREEMENT_PROVED

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        loss, deviations = view.loss, view.scalar("output_agreement")
        self._follow_weights(view)
        if math.isnan(deviations) or loss is None or loss.actors > 1:
            return (*self._never.stay(), *self._lost.stay())
        self._follow_task(view)
        self._latest.append((view.step, deviations))
        return (*self._observe_never(view, loss), *self._observe_lost())

    def _follow_task(self, view: FrameView) -> None:
        """What was known of one task is not lost when another takes its place."""
        kind, classes = view.scalar("loss_kind"), view.scalar("loss_classes")
        if math.isnan(kind):
            return
        task = (kind, -1.0 if math.isnan(classes) else classes)
        if self._task is not None and task != self._task:
            self._latest.clear()
            self._best = 0.0
        self._task = task

    def _follow_weights(self, view: FrameView) -> None:
        if view.row("update_ratio") is not None:
            pace = middle(matrices_of(view.layout).update_ratios(view))
            if math.isfinite(pace):
                self._paces.append(pace)
        if view.row("weight_drift") is not None:
            drift = middle(matrices_of(view.layout).values(view, "weight_drift"))
            self._drift = drift if math.isfinite(drift) else self._drift

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> None:
        """Know of frames without a look what `observe` would have learnt from them."""
        matrices = matrices_of(batch.layout)
        for stream, name in (("update", "update_ratios"), ("weight", "weight_drift")):
            at = batch.at(stream)
            chosen = (first <= at) & (at < last)
            if chosen.any():
                values = matrices.middles(batch, name)[chosen]
                known: list[float] = values[np.isfinite(values)].tolist()
                if stream == "update":
                    self._paces.extend(known)
                else:
                    self._drift = known[-1] if known else self._drift

    @property
    def _moves_well(self) -> bool:
        low, high = limit.HEALTHY_UPDATE
        return len(self._paces) > 0 and low < fmean(self._paces) and max(self._paces) < high

    def _observe_never(self, view: FrameView, loss: Loss) -> tuple[Verdict, ...]:
        if len(self._latest) < limit.AGREEMENT_LOOKS or self._found:
            return self._never.stay()
        mean = fmean(deviations for _, deviations in self._latest)
        if abs(mean) > limit.AGREEMENT_NONE:  # to be wrong more often than by chance is a relation, too
            self._found = True
            return self._never.stay()  # perhaps by heart: what was said stays
        recent = fmean(deviations for _, deviations in list(self._latest)[-limit.AGREEMENT_RECENT :])
        if recent > limit.AGREEMENT_RECENT_NONE:  # a weak relation that is being found: most looks are old
            return self._never.stay()
        if loss.positive and loss.falling and -loss.slope * loss.span > limit.AGREEMENT_FALLING * loss.level:
            return self._never.stay()  # what is the same for all samples is learnt first: a mean, a rare class
        # Rows of a table learn only when they are looked up.
        patience = max(limit.AGREEMENT_STEPS, 0.5 * view.layout.derived(_rows_of_tables))
        if loss.seen < patience or not self._drift > limit.AGREEMENT_DRIFT or not self._moves_well:
            return self._never.stay()
        return self._never.hold(None, lambda: self._verdict_never(mean))

    def _observe_lost(self) -> tuple[Verdict, ...]:
        few = list(self._latest)[-limit.AGREEMENT_LOST_LOOKS :]
        if len(few) < limit.AGREEMENT_LOST_LOOKS:
            return ()
        mean = fmean(deviations for _, deviations in few)
        self._best = max(self._best, mean)
        left = min(limit.AGREEMENT_LOST * self._best, limit.AGREEMENT_PROVED)  # fewer rows prove less, but prove it
        if self._best < limit.AGREEMENT_KNOWN or mean > left:
            return self._lost.end()
        if not self._moves_well:
            return self._lost.stay()
        return self._lost.hold(None, lambda: self._verdict_lost(few[0][0], mean))

    def _verdict_never(self, mean: float) -> Verdict:
        evidence = (
            Evidence("output_agreement", None, mean, None, f"{_HOW}: mean of {len(self._latest)} looks"),
            Evidence("weight_drift", None, self._drift, None, "median way of the weight matrices: they did move"),
        )
        summary = (
            "The answers fit their own targets no better than those of other samples, although the weights move as "
            "they should: the targets do not seem to follow from the inputs."
        )
        return Verdict("unrelated", True, Severity.MODERATE, (), 0, 0.6, summary, evidence)

    def _verdict_lost(self, step: int, mean: float) -> Verdict:
        how = f"{_HOW}: mean of the latest {limit.AGREEMENT_LOST_LOOKS} looks, and at its best"
        evidence = Evidence("output_agreement", None, mean, self._best, how)
        summary = (
            f"Since about step {step} the answers fit their own targets no better than those of other samples, and "
            "before they did: the targets that come now do not seem to follow from their inputs."
        )
        return Verdict("lost", True, Severity.MODERATE, (), step, 0.7, summary, (evidence,))


def _rows_of_tables(layout: LayerIndex) -> int:
    tables = [layer.shape[0] for layer in layout.layers if layer.kind == LayerKind.EMBEDDING and layer.shape]
    return max(tables, default=0)
