"""A real token that has the padding index of an embedding: its row has no gradient, and stays zero for ever."""

from __future__ import annotations

import numpy as np

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class PaddingToken:
    """Of embeddings with a padding index, at sampled steps in a row."""

    def __init__(self) -> None:
        self._condition = Condition("padding")
        self._inside: dict[int, int] = {}  # embedding: sampled steps in a row with padding between tokens
        self._since = 0

    @property
    def resting(self) -> bool:
        return not self._condition.is_open and not any(self._inside.values())

    def news(self, batch: FrameBatch) -> Flags:
        return batch.flags("activation", batch.row("padding_inside") > limit.PADDING_INSIDE)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        inside, ids = view.row("padding_inside"), view.ids("activation")
        if inside is None or ids is None or np.isnan(inside).all():
            return self._condition.stay()
        if not any(self._inside.values()):
            self._since = view.step
        for layer, share in zip(ids.tolist(), inside.tolist(), strict=True):
            if share == share:
                self._inside[layer] = self._inside.get(layer, 0) + 1 if share > limit.PADDING_INSIDE else 0
        members = tuple(layer for layer, steps in self._inside.items() if steps >= limit.PADDING_FRAMES)
        if not members:
            return self._condition.end()
        return self._condition.hold(members, lambda: self._verdict(view, members))

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout, inside = view.layout, view.all_layers("padding_inside")
        how = "share of tokens with the padding index that stand amid others: their row gets no gradient"
        evidence = tuple(Evidence("padding_inside", layout.path(i), float(inside[i]), 0.0, how) for i in members[:3])
        summary = f"The padding index of {name_layers(layout, members)} is a real token: its row never learns."
        return Verdict("padding", True, Severity.MODERATE, members, self._since, 0.9, summary, evidence)
