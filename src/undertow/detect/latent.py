"""A code that tells the decoder nothing about its sample: posterior collapse, measured in nats."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.progress import has_learnt
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class LatentWatch:
    """Of the modules that give the mean of a code whose divergence from a prior stands in the loss."""

    def __init__(self) -> None:
        self._condition = Condition("latent")
        self._empty = LayerStreak()
        self._told: NDArray[np.bool_] = np.zeros(0, bool)  # told its decoder something, while it learnt

    def grow(self, count: int) -> None:
        self._empty.grow(count)
        self._told = grown(self._told, count, False)

    @property
    def is_open(self) -> bool:
        return self._condition.is_open

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        nats, ids = view.row("latent_nats"), view.ids("activation")
        if nats is None or ids is None or not (known := ~np.isnan(nats)).any():
            return self._condition.stay()
        empty = known & (nats < limit.LATENT_NATS)
        if has_learnt(view.loss):  # what random weights tell is lost in health, too
            self._told[ids[known & (nats > limit.LATENT_TOLD)]] = True
        self._empty.end(ids[known & ~empty])
        self._empty.hold(ids[empty], view.step)
        least = np.where(self._told[ids], limit.LATENT_STEPS_OF_LOSS, limit.LATENT_STEPS)
        due = ids[(self._empty.length[ids] >= limit.LATENT_FRAMES) & (self._empty.span[ids] >= least)]
        if not len(due):
            return self._condition.end()
        members = tuple(view.layout.in_order(due))
        return self._condition.hold(members, lambda: self._verdict(view, members))

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        layout, nats = view.layout, view.all_layers("latent_nats")
        how = "nats that a code can tell about its sample; a single bit is 0.69"
        evidence = tuple(Evidence("latent_nats", layout.path(i), float(nats[i]), None, how) for i in members)
        summary = (
            f"The code of {layout.path(members[0])} is the prior for every sample: it tells the decoder nothing. "
            "The divergence weighs too much beside the error."
        )
        first_step = int(self._empty.since[list(members)].min())
        return Verdict("latent", True, Severity.MODERATE, members, first_step, 0.9, summary, evidence)
