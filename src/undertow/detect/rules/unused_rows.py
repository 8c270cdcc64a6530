"""DAT006."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from undertow.detect import thresholds
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.module_structure import structure_of
from undertow.detect.features.output_layer import output_layers
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

_OF_LABELS = frozenset({"loss_rows", "label_entropy_pooled"})


class UnusedRows:
    """Most rows of an embedding table, or most classes, are never used.

    What it sees
    ------------
    The share of an embedding's rows that never had a gradient, once it has stopped falling for half of the run: one
    in ten used is a hint, one in a hundred an alarm. And the number of classes that the labels amount to (by their
    entropy), against the number of outputs: one in two hundred, or one single class, is a hint.

    Why it is bad
    -------------
    A table much larger than the data wastes memory and often means that the wrong vocabulary, column or label mapping
    is in use.

    When it is wrong
    ----------------
    A large vocabulary is met little by little: while new rows still come into use, nothing is said. A fine-tuning on a
    narrow text uses a small part of a large vocabulary for good reason; that is a hint at most. Contrastive losses give
    every row the same label by design; a classifier, which has an output for every class, does so only by mistake.

    References
    ----------
    PyTorch documentation, `torch.nn.Embedding`.
    """

    code: ClassVar[str] = "DAT006"

    def __init__(self) -> None:
        self._rows, self._classes = Condition("rows"), Condition("classes")
        self._labels = 0.0  # seen so far, at measured steps
        self._used: dict[int, tuple[float, int]] = {}  # layer: share used, and since which step it has not grown
        self._rows_per_step = 0.0
        self._first_step: int | None = None

    def grow(self, count: int) -> None:
        """Layers keep their ids."""

    @property
    def resting(self) -> bool:
        return self._first_step is not None and not (self._rows.is_open or self._classes.is_open)

    def news(self, batch: FrameBatch) -> Flags:
        out = batch.with_any(_OF_LABELS)
        if batch.has("weight"):
            out |= batch.flags("weight", ~np.isnan(batch.row("weight_rows_unused")))
        return out

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if self._first_step is None:
            self._first_step = view.step
        rows = view.frame.scalars.get("loss_rows", 0.0)
        if rows > 0:
            self._rows_per_step = rows
        return (*self._observe_rows(view), *self._observe_classes(view))

    def _observe_rows(self, view: FrameView) -> tuple[Verdict, ...]:
        unused, ids = view.row("weight_rows_unused"), view.ids("weight")
        if unused is None or ids is None:
            return self._rows.stay()
        known = np.flatnonzero(~np.isnan(unused))
        if not len(known):
            return self._rows.stay()
        first = self._first_step or 0
        members: list[int] = []
        for place in known:
            layer, used = int(ids[place]), 1.0 - float(unused[place])
            before, since = self._used.get(layer, (0.0, view.step))
            if used > thresholds.UNUSED_GROWS * before:
                since = view.step
                self._used[layer] = (used, since)
            # Looked up so often that what there is to meet has been met; at least one row is looked up to a label.
            lookups, rows = self._rows_per_step * (view.step - first), view.layout.layers[layer].shape[0]
            many = lookups > thresholds.UNUSED_LOOKUPS * used * rows
            patience = thresholds.UNUSED_STEPS_AFTER_MANY if many else thresholds.UNUSED_STEPS
            settled = view.step - since >= max(patience, 0.5 * (view.step - first))
            if settled and 0 < used < thresholds.UNUSED_HINT:
                members.append(layer)
        if not members:
            return self._rows.end()
        return self._rows.hold(tuple(members), lambda: self._verdict_rows(view, members))

    def _verdict_rows(self, view: FrameView, members: list[int]) -> Verdict:
        layout = view.layout
        least = min(self._used[layer][0] for layer in members)
        severity = Severity.MODERATE if least < thresholds.UNUSED_ALARM else Severity.MILD
        evidence = tuple(
            Evidence(
                "weight_rows_unused", layout.path(layer), 1 - self._used[layer][0], 0.0, "and no more come into use"
            )
            for layer in members[:3]
        )
        summary = f"Only {least:.1%} of the rows of {name_layers(layout, members)} are ever used."
        return Verdict("rows", True, severity, tuple(members), self._first_step or 0, 0.7, summary, evidence)

    def _observe_classes(self, view: FrameView) -> tuple[Verdict, ...]:
        scalars = view.frame.scalars
        pooled, classes = scalars.get("label_entropy_pooled"), scalars.get("loss_classes")
        if pooled is None or classes is None or not pooled >= 0 or not classes >= 2:
            return self._classes.stay()
        rows = scalars.get("loss_rows", math.nan)
        self._labels += rows if rows == rows else 0.0
        used = math.exp(pooled)
        # Enough labels to have met what there is to meet.
        if self._labels < max(thresholds.UNUSED_LABELS_LEAST, thresholds.UNUSED_LABELS * used):
            return ()
        if pooled > thresholds.SINGLE_CLASS and used > thresholds.UNUSED_CLASSES * classes:
            return self._classes.end()
        # A classifier has an output for every class; a contrastive loss, whose labels are all alike, has none of it.
        heads = [int(structure_of(view.layout).matrix[i]) for i in output_layers(view)]
        asked = any(i >= 0 and view.layout.layers[i].shape[0] == classes for i in heads)
        long = view.step - (self._first_step or 0) >= thresholds.SINGLE_CLASS_STEPS
        alone = pooled == 0 and asked and long and self._labels >= thresholds.UNUSED_LABELS_LEAST
        return self._classes.hold(alone, lambda: self._verdict_classes(used, classes, alone))

    def _verdict_classes(self, used: float, classes: float, alone: bool) -> Verdict:
        how = f"of {classes:.0f}, as far as the entropy of {self._labels:,.0f} labels tells"
        evidence = Evidence(
            "label_entropy_pooled", None, math.log(used), math.log(classes), f"{used:.3g} classes in use {how}"
        )
        if alone:
            summary = f"All labels seen are the same one of {classes:.0f} classes: there is nothing to tell apart."
            return Verdict("classes", True, Severity.SEVERE, (), self._first_step or 0, 0.9, summary, (evidence,))
        summary = f"The labels amount to {used:.3g} of {classes:.0f} classes: most outputs are never asked for."
        return Verdict("classes", True, Severity.MILD, (), self._first_step or 0, 0.75, summary, (evidence,))
