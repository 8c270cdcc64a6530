"""Layers that are frozen in the middle of a training which otherwise goes on as before."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from undertow.detect import thresholds as limit
from undertow.detect.condition import Condition
from undertow.detect.engine.batch import FrameBatch
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import GradientState
from undertow.schema.severity import Severity


class LateFreeze:
    """Matrices that were trained, and rest while the same optimizer still holds them and moves others.

    Who freezes layers by plan makes a new optimizer for the rest, or gives it another rate, or releases others, or
    freezes one layer after the other, or when most is learnt; what a look at the filters, an export or a probe leaves
    frozen stays with the optimizer it had.
    """

    def __init__(self) -> None:
        self._holder: NDArray[np.float32] = np.zeros(0, np.float32)  # of each layer that got gradients, when last seen
        self._rate = math.nan
        self._frozen: NDArray[np.bool_] = np.zeros(0, bool)
        self._forgotten = LayerStreak()
        self._is_meant = False  # some layer was frozen before, or released
        self._was_learnt = False  # most of the loss was gone when it was frozen: it costs little
        self._condition = Condition("late")

    def grow(self, count: int) -> None:
        self._holder = grown(self._holder, count, np.nan)
        self._frozen = grown(self._frozen, count, False)
        self._forgotten.grow(count)

    @property
    def is_waiting(self) -> bool:
        return bool(self._forgotten.length.any()) or self._condition.is_open

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> None:
        """Rates and holders are remembered. A holder that changes is news: here each layer has one, where known."""
        if self._is_meant or not batch.frames_with("gradient", first, last):
            return
        known = batch.scalar("lr")[batch.frames_with("gradient", first, last)]
        known = known[~np.isnan(known)]
        self._rate = float(known[-1]) if len(known) else self._rate
        rows = slice(*np.searchsorted(batch.at("gradient"), (first, last)))
        trained = batch.row("gradient_state")[rows] == GradientState.PRESENT
        holders = np.fmax.reduce(np.where(trained, batch.row("gradient_optimizer")[rows], np.float32(np.nan)), axis=0)
        self._remember(batch.ids("gradient"), holders)

    def _remember(self, ids: NDArray[np.int32], holders: NDArray[np.float32]) -> None:
        known = ~np.isnan(holders)
        self._holder[ids[known]] = holders[known]

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        states, holders, ids = view.row("gradient_state"), view.row("gradient_optimizer"), view.ids("gradient")
        if states is None or holders is None or ids is None or self._is_meant:
            return ()
        now, before = states == GradientState.FROZEN, self._frozen[ids]
        known = ~np.isnan(states)
        if (now & ~before).any():
            self._freeze(view, ids[now & ~before], ids, states, holders)
        released = (before & ~now & known).any()
        if released:
            self._is_meant = True
        self._frozen[ids[known]] = now[known]
        trained = states == GradientState.PRESENT
        self._remember(ids[trained], holders[trained])
        rate = view.scalar("lr")
        self._rate = self._rate if math.isnan(rate) else rate
        waiting = np.flatnonzero(self._forgotten.length[ids] > 0)
        moved_on = holders[waiting] != self._holder[ids[waiting]]
        if self._is_meant or (len(waiting) and moved_on.any()):
            self._is_meant = True
            self._forgotten.end(np.flatnonzero(self._forgotten.length).astype(np.int32))
            return self._condition.end()
        waiting = waiting[self._forgotten.since[ids[waiting]] < view.step]
        self._forgotten.hold(ids[waiting], view.step)
        due = self._forgotten.lasted(limit.FROZEN_PATIENCE)
        due &= view.step - self._forgotten.since >= limit.FROZEN_PATIENCE_LATE
        if not due.any():
            return self._condition.stay()
        members = tuple(view.layout.in_order(np.flatnonzero(due)))
        return self._condition.hold(members, lambda: self._verdict(view, members))

    def _freeze(
        self, view: FrameView, new: NDArray[np.int32], ids: NDArray[np.int32],
        states: NDArray[np.float32], holders: NDArray[np.float32],
    ) -> None:  # fmt: skip
        """Layers are frozen that were not: is there a sign of a plan?"""
        rate = view.scalar("lr")
        same_rate = not (rate > 0 and self._rate > 0 and abs(math.log(rate / self._rate)) > math.log(limit.FROZEN_RATE))
        stepping = set(holders[states == GradientState.PRESENT].tolist()) - {-1.0}
        holder_of = dict(zip(ids.tolist(), holders.tolist(), strict=True))
        stays = {int(i) for i in new if holder_of[int(i)] in stepping and holder_of[int(i)] == self._holder[i]}
        matrices = [i for i in stays if len(view.layout.layers[i].shape) >= 2]
        if self._frozen.any() or not matrices or not same_rate or len(stays) < len(new):
            self._is_meant = True
            return
        self._was_learnt = view.loss is not None and view.loss.remaining < limit.FROZEN_LEARNT
        self._forgotten.hold(np.array(sorted(stays), np.int32), view.step)

    def _verdict(self, view: FrameView, members: tuple[int, ...]) -> Verdict:
        since = int(self._forgotten.since[list(members)].min())
        one = len(members) == 1
        how = (
            f"requires_grad is False since step {since}; the optimizer that trained it still holds it, and moves others"
        )
        state = float(GradientState.FROZEN)
        evidence = tuple(Evidence("gradient_state", view.layout.path(i), state, None, how) for i in members[:5])
        summary = (
            f"{name_layers(view.layout, members)} {'was' if one else 'were'} trained until step {since} and "
            f"{'is' if one else 'are'} frozen since, while the optimizer goes on as before: forgotten after a look?"
        )
        severity = Severity.MILD if self._was_learnt else Severity.MODERATE
        return Verdict("late", True, severity, members, since, 0.75, summary, evidence)
