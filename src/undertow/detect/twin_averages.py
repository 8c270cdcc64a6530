"""Replicas of one process whose weights are one, and whose batch normalisations keep averages of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import LayerStreak
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class TwinAverages:
    def __init__(self) -> None:
        self._streak = LayerStreak()
        self._condition = Condition("averages")

    @property
    def is_open(self) -> bool:
        return self._condition.is_open

    def grow(self, count: int) -> None:
        self._streak.grow(count)

    def observe(self, view: FrameView, one: NDArray[np.int64], other: NDArray[np.int64]) -> tuple[Verdict, ...]:
        """Both members of each pair of normalisations."""
        if view.row("norm_average") is None or not len(one):
            return self._condition.stay()
        values = view.all_layers("norm_average").astype(np.float64)
        apart = np.abs(values[one] - values[other]) / np.fmax(
            np.fmax(np.abs(values[one]), np.abs(values[other])), 1e-30
        )
        known, away = ~np.isnan(apart), apart > limit.AVERAGES_APART
        if not known.any():
            return self._condition.stay()
        for ids in (one, other):
            self._streak.end(ids[known & ~away].astype(np.int32))
            self._streak.hold(ids[away].astype(np.int32), view.step)
        members = away & (self._streak.length[one] >= limit.AVERAGES_FRAMES)
        if not members.any():
            return self._condition.stay() if away.any() else self._condition.end()
        layers = tuple(view.layout.in_order(np.concatenate([one[members], other[members]])))
        farthest = float(apart[members].max())
        return self._condition.hold(layers, lambda: self._verdict(view, layers, farthest))

    def _verdict(self, view: FrameView, layers: tuple[int, ...], apart: float) -> Verdict:
        how = "relative difference between the replicas' running means, while their weights are the same"
        evidence = (Evidence("norm_average", view.layout.path(layers[0]), apart, 0.0, how),)
        named = name_layers(view.layout, layers)
        summary = f"Replicas of one model keep running averages of their own: {named} are no longer the same."
        since = int(self._streak.since[list(layers)].min())
        return Verdict("averages", True, Severity.MODERATE, layers, since, 0.9, summary, evidence)
