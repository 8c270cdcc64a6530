"""Part of MOD001: what is computed once more in the backward pass, with other dropout masks."""

from __future__ import annotations

import numpy as np

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.consecutive import LayerStreak
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class RedrawnMasks:
    """Modules that draw random numbers, and draw others when checkpointing runs them again."""

    def __init__(self) -> None:
        self._apart = LayerStreak()
        self._condition = Condition("redrawn")

    def grow(self, count: int) -> None:
        self._apart.grow(count)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        row, ids = view.row("recomputed_apart"), view.ids("activation")
        if row is None or ids is None:
            return ()
        known = ~np.isnan(row)
        if not known.any():
            return ()
        self._apart.end(ids[known & (row == 0)])
        self._apart.hold(ids[known & (row == 1)], view.step)
        due = np.flatnonzero(self._apart.length >= limit.REDRAWN_FRAMES)
        if not len(due):
            return self._condition.end()
        members = _innermost(view, view.layout.in_order(due))
        return self._condition.hold(members, lambda: self._verdict(view, members))

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        how = "ran again in the backward pass, and began with another state of the random generator"
        evidence = tuple(Evidence("recomputed_apart", view.layout.path(i), 1.0, 0.0, how) for i in members[:3])
        verb = "draws" if len(members) == 1 else "draw"
        summary = (
            f"{name_layers(view.layout, members)} {verb} other random numbers when checkpointing computes them once "
            "more: the gradient belongs to other dropout masks than the loss."
        )
        first_step = int(self._apart.since[list(members)].min())
        return Verdict("redrawn", True, Severity.SEVERE, members, first_step, 0.97, summary, evidence)


def _innermost(view: FrameView, members: list[int]) -> tuple[int, ...]:
    """A block draws because a part of it does."""
    paths = [view.layout.path(i) for i in members]
    return tuple(
        i
        for i, path in zip(members, paths, strict=True)
        if not any(other.startswith(f"{path}.") for other in paths if other != path)
    )
