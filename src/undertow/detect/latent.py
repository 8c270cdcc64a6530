"""A code that tells the decoder nothing about its sample: posterior collapse, measured in nats."""

from __future__ import annotations

import numpy as np

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.rule import Streak, Verdict
from undertow.detect.view import View
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class LatentWatch:
    """Of the modules that give the mean of a code whose divergence from a prior stands in the loss."""

    def __init__(self) -> None:
        self._condition = Condition("latent")
        self._empty = Streak()

    def grow(self, count: int) -> None:
        self._empty.grow(count)

    @property
    def is_open(self) -> bool:
        return self._condition.is_open

    def observe(self, view: View) -> tuple[Verdict, ...]:
        nats, ids = view.row("latent_nats"), view.ids("activation")
        if nats is None or ids is None or not (known := ~np.isnan(nats)).any():
            return self._condition.stay()
        empty = known & (nats < limit.LATENT_NATS)
        self._empty.end(ids[known & ~empty])
        self._empty.hold(ids[empty], view.step)
        due = ids[(self._empty.length[ids] >= limit.LATENT_FRAMES) & (self._empty.span[ids] >= limit.LATENT_STEPS)]
        if not len(due):
            return self._condition.end()
        members = tuple(view.layout.in_order(due))
        return self._condition.hold(members, lambda: self._verdict(view, members))

    def _verdict(self, view: View, members: tuple[int, ...]) -> Verdict:
        layout, nats = view.layout, view.all_layers("latent_nats")
        how = "nats that a code can tell about its sample; a single bit is 0.69"
        evidence = tuple(Evidence("latent_nats", layout.path(i), float(nats[i]), None, how) for i in members)
        summary = (
            f"The code of {layout.path(members[0])} is the prior for every sample: it tells the decoder nothing. "
            "The divergence weighs too much beside the error."
        )
        first_step = int(self._empty.since[list(members)].min())
        return Verdict("latent", True, Severity.MODERATE, members, first_step, 0.9, summary, evidence)
