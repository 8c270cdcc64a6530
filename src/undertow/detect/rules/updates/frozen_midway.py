"""UPD003: layers that are frozen in the middle of a training which otherwise goes on as before."""

import math

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, LayerValues, Limit, Shared, Stage
from undertow.detect.features.parameter_updates import ParameterUpdates
from undertow.detect.features.remedies import UNFREEZE
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, GradientState, Severity


class FrozenMidway(Condition):
    """Layers that were trained are frozen in the middle of a run, and nothing else changes.

    What it sees: Matrices that were trained and have `requires_grad` set to False for forty steps, while their
        optimizer keeps them, its rate and the others.
    Why it is bad: The layers stop learning while the loss still falls. The usual causes are a look at the filters, an
        export or a probe that freezes the model and forgets to release it.
    When it is wrong: Who freezes layers by plan makes a new optimizer for the rest, gives it another rate, releases
        others, or freezes one layer after the other: all of that is left alone. When nearly all is learnt by then, it
        is a remark. Whoever else freezes by plan, with nothing else changed, is taken to have forgotten it.
    References: PyTorch documentation, "Autograd mechanics", section "Setting requires_grad".
    """

    code, variant, formerly = "UPD003", "frozen-midway", "late"
    places = ("freeze",)
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    _updates = Shared(ParameterUpdates)
    meaning = "These layers stay as they were at that step while the rest learns on, so the loss still looks fine"
    remedies = (UNFREEZE,)
    patience = Limit.chance(5, "measured steps, or three over four times as many: a look may take a few steps")
    steps = Limit.plan(40, "steps: who freezes one layer after the other has frozen the next one by then")
    learnt = Limit(0.1, "of the first loss, left when it was frozen: it costs little then")
    rate = Limit(1.5, "times, by which a rate changes in one step where freezing is part of a plan")

    _frozen = LayerValues(np.bool_, False)

    def __init__(self) -> None:
        self._forgotten = LayerStreak()
        self._is_meant = False  # some layer was frozen before, or released
        self._was_learnt = False  # when it was frozen

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._forgotten.length.any()

    def observe(self, view: FrameView) -> Judgement | None:
        states, holders, ids = view.row("gradient_state"), view.row("gradient_optimizer"), view.ids("gradient")
        if states is None or holders is None or ids is None or self._is_meant:
            return None
        now, before, known = states == GradientState.FROZEN, self._frozen[ids], ~np.isnan(states)
        if not now.any() and not before.any():
            return self.stay()
        if (now & ~before).any():
            self._freeze(view, now & ~before, holders[states == GradientState.PRESENT], holders)
        self._is_meant |= bool((before & ~now & known).any())
        self._frozen[ids[known]] = now[known]
        waiting = np.flatnonzero(self._forgotten.length[ids] > 0)
        if self._is_meant or (holders[waiting] != self._updates.holder[ids[waiting]]).any():
            self._is_meant = True
            self._forgotten.end(np.flatnonzero(self._forgotten.length).astype(np.int32))
            return self.end()
        waiting = waiting[self._forgotten.since[ids[waiting]] < view.step]
        self._forgotten.hold(ids[waiting], view.step)
        due = self._forgotten.lasted(int(self.patience)) & (view.step - self._forgotten.since >= self.steps)
        if not due.any():
            return self.stay()
        members = tuple(view.layout.in_order(np.flatnonzero(due)))
        return self.hold(members, lambda: self._describe(view, members))

    def _freeze(
        self, view: FrameView, new: NDArray[np.bool_], stepping: NDArray[np.float32], holders: NDArray[np.float32]
    ) -> None:
        """Layers are frozen that were not: is there a sign of a plan?"""
        ids, rate, before = np.asarray(view.ids("gradient")), view.scalar("lr"), self._updates.rate_before
        same_rate = not (rate > 0 and before > 0 and abs(math.log(rate / before)) > math.log(self.rate))
        kept = (holders != -1) & np.isin(holders, stepping) & (holders == self._updates.holder[ids])
        has_matrix = any(len(view.layout.layers[int(i)].shape) >= 2 for i in ids[new])
        if self._frozen.any() or not has_matrix or not same_rate or not kept[new].all():
            self._is_meant = True
            return
        self._was_learnt = view.loss is not None and view.loss.remaining < self.learnt
        self._forgotten.hold(ids[new], view.step)

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        since = int(self._forgotten.since[list(members)].min())
        was, verb = ("was", "is") if len(members) == 1 else ("were", "are")
        how = (
            f"requires_grad is False since step {since}; the optimizer that trained it still holds it, and moves others"
        )
        state = float(GradientState.FROZEN)
        evidence = tuple(Evidence("gradient_state", view.layout.path(i), state, None, how) for i in members[:5])
        summary = (
            f"{name_layers(view.layout, members)} {was} trained until step {since} and {verb} frozen since, "
            "while the optimizer goes on. Was `requires_grad_(True)` forgotten?"
        )
        severity = Severity.MILD if self._was_learnt else Severity.MODERATE
        return Judgement(severity, members, since, 0.75, summary, evidence)
