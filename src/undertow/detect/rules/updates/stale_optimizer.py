"""UPD003: an optimizer whose parameters are no longer those of the model."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.parameter_updates import ParameterUpdates
from undertow.detect.features.remedies import GIVE_IT_TO_THE_OPTIMIZER
from undertow.schema import Evidence, GradientState, Severity


class StaleOptimizer(Condition):
    """An optimizer steps on, while none of its parameters gets a new gradient any more.

    What it sees: Parameters of all optimizers that got gradients before and get none any more, or the same one to the
        last bit, at five measured steps, though the loss is still differentiated.
    Why it is bad: The gradients go to other tensors under the same names: the model's parameters were replaced by new
        ones, and the optimizer moves the old ones. Nothing is learnt from then on.
    When it is wrong: Several optimizers in turn, one of which has a long turn; steps that cover only some of the
        parameters tell nothing.
    References: PyTorch documentation, `torch.optim.Optimizer.add_param_group`.
    """

    code, variant, formerly = "UPD003", "stale-optimizer", "deserted"
    places = ("optimizer",)
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    _updates = Shared(ParameterUpdates)
    meaning = "The optimizer moves tensors that the model no longer uses, so nothing is learnt any more"
    remedies = (GIVE_IT_TO_THE_OPTIMIZER,)
    patience = Limit.chance(5, "measured steps in a row")
    few = Limit.chance(3, "measured steps that are enough over `long` steps, where measurements are rare")
    long = Limit.plan(10, "steps: no loss is left out of training for so long")

    def __init__(self) -> None:
        self._was_fed = False
        self._without = Consecutive()

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._without.count

    def observe(self, view: FrameView) -> Judgement | None:
        states, ids = view.row("gradient_state"), view.ids("gradient")
        if states is None or ids is None:
            return self.stay()
        present = states == GradientState.PRESENT
        left = present & self._is_left_behind(view)
        if (present & ~left).any():
            self._was_fed = True
            self._without.end()
            return self.end()
        held = self._updates.held
        without = held[ids] & (left | (states == GradientState.NONE))
        if not self._was_fed or view.loss is None or not without.any() or held[ids].sum() < held.sum():
            return self.stay()
        count = self._without.hold(view.step)
        if count < self.patience and not (count >= self.few and view.step - self._without.since >= self.long):
            return self.stay()
        return self.hold(True, lambda: self._describe(int(without.sum())))

    def _is_left_behind(self, view: FrameView) -> NDArray[np.bool_]:
        """A gradient that nobody clears stays the same to the last bit when its parameter is no longer used, and the
        optimizer goes on moving the weight by it. What moves and is used has another gradient afterwards.
        """
        norms, carried = np.asarray(view.row("gradient_norm")), np.asarray(view.row("gradient_carried"))
        moves = view.row("update_norm")
        if moves is None or not (moves > 0).any() or view.skipped:
            return np.zeros(len(norms), bool)
        return (carried == 1) & (norms == self._updates.norm_before) & np.isfinite(norms) & (norms > 0)

    def _describe(self, count: int) -> Judgement:
        since = self._without.since
        how = f"none of the {count} parameters of the optimizer has had a new gradient since step {since}"
        evidence = (Evidence("gradient_state", None, GradientState.NONE, GradientState.PRESENT, how),)
        summary = (
            f"Since step {since} no parameter in the optimizer gets a new gradient, though the loss is differentiated: "
            "have the model's parameters been replaced?"
        )
        return Judgement(Severity.CRITICAL, (), since, 0.95, summary, evidence)
