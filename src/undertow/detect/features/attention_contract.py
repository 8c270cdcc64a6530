"""What attention must do whatever is trained: a base for the conditions that each check one such contract."""

from typing import ClassVar

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, Limit, Stage
from undertow.detect.features.wording import name_layers
from undertow.schema import AttentionState, Evidence, Severity


class AttentionContract(Condition):
    """A block breaks one contract at sampled steps in a row; the probe reads it from the operations of the block."""

    code = "ACT004"
    stage = Stage.STEP
    needs = frozenset({"activation"})
    state: ClassVar[float]  # of `attention_state`
    sentence: ClassVar[str]  # with {layers}
    how: ClassVar[str]
    frames = Limit(2, "sampled steps in a row: a single batch may be an odd one")
    latest_start = Limit(np.inf, "step at which it must have begun")

    def __init__(self) -> None:
        self._broken = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        states, ids = view.row("attention_state"), view.ids("activation")
        if states is None or ids is None or np.isnan(states).all():
            return None
        self._broken.end(ids[states != self.state])
        self._broken.hold(ids[states == self.state], view.step)
        lasted = (self._broken.length >= self.frames) & (self._broken.since < self.latest_start)
        due = tuple(view.layout.in_order(np.flatnonzero(lasted)))
        return self.hold(due, lambda: self._describe(view, due)) if due else self.end()

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        summary = self.sentence.format(layers=name_layers(view.layout, members))
        how = f"{self.state:.0f}: {self.how}"
        evidence = (Evidence("attention_state", view.layout.path(members[0]), self.state, AttentionState.FINE, how),)
        first_step = int(self._broken.since[list(members)].min())
        return Judgement(Severity.SEVERE, members, first_step, 0.95, summary, evidence)
