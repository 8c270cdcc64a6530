"""UPD003: no weight has ever moved."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.parameter_updates import ParameterUpdates
from undertow.detect.features.remedies import CLEAR_GRADIENTS
from undertow.schema import Evidence, Severity


class NoWeightMoves(Condition):
    """No weight has ever moved, though gradients arrive and the optimizer steps.

    What it sees: Updates that are exactly zero for every weight at ten measured steps from the start, while gradients
        and the learning rate are not zero and steps of that size would not round away.
    Why it is bad: Nothing is learnt. The gradients are gone when the optimizer steps: `zero_grad` is called between
        `backward` and `step`.
    When it is wrong: An optimizer that accumulates gradients by itself over more than twenty steps.
    References: PyTorch documentation, `torch.optim.Optimizer.zero_grad`.
    """

    code, variant, formerly = "UPD003", "no-weight-moves", "standstill"
    stage, is_exact = Stage.COURSE, True
    _updates = Shared(ParameterUpdates)
    meaning = "Nothing is learnt at all"
    remedies = (CLEAR_GRADIENTS,)
    patience = Limit(10, "measured steps: an optimizer may accumulate gradients over a few of them by itself")
    few = Limit(4, "measured steps that are enough over `long` steps, where measurements are rare")
    long = Limit(20, "steps, twice the patience")

    def __init__(self) -> None:
        self._stood = Consecutive()

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._stood.count

    def observe(self, view: FrameView) -> Judgement | None:
        if self._updates.has_moved:
            self._stood.end()
            return self.end()
        moves = view.row("update_norm")
        pushed = self._updates.unmoved(view)
        if moves is None:
            return None
        if pushed is None or not view.scalar("lr") > 0 or not (moves == 0).any():
            return self.stay()
        if not len(pushed) or self._updates.rounds_away(view, pushed).any():
            self._stood.end()
            return self.stay()
        count = self._stood.hold(view.step)
        if count < self.patience and not (count >= self.few and view.step - self._stood.since >= self.long):
            return self.stay()
        return self.hold(True, lambda: self._describe(view, pushed))

    def _describe(self, view: FrameView, pushed: NDArray[np.int32]) -> Judgement:
        sizes = self._updates.pushed[pushed]
        largest, layer = float(sizes.max()), int(pushed[np.argmax(sizes)])
        how = f"largest element of a gradient at step {view.step}, before the optimizer came to use it"
        moves = f"of every weight, at {self._stood.count} measured steps and all before"
        evidence = (
            Evidence("update_norm", None, 0.0, None, moves),
            Evidence("gradient_max_abs", view.layout.path(layer), largest, None, how),
            Evidence("lr", None, view.scalar("lr"), None, "the learning rate is not zero"),
        )
        summary = (
            "No weight has ever moved, though gradients arrive and the optimizer steps: they are gone when it does. "
            "Is zero_grad called between backward and step?"
        )
        return Judgement(Severity.CRITICAL, (), 0, 0.95, summary, evidence)
