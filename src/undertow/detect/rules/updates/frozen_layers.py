"""UPD004: layers that are frozen on purpose."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerIndex, LayerValues, Stage, where
from undertow.detect.features.remedies import UNFREEZE
from undertow.detect.features.wording import count_of, name_layers
from undertow.schema import Evidence, GradientState, Severity


class FrozenLayers(Condition):
    """Parameters are frozen on purpose.

    What it sees: Parameters with `requires_grad` set to False. They are listed in one finding, from the step at which
        the first of them was seen frozen; the list follows the model when layers are frozen or released later.
    Why it is bad: It is not: fine-tuning freezes layers on purpose. It is reported so that a layer frozen by mistake
        can be seen.
    When it is wrong: It is a remark, never an alarm. Look once whether the list is the one you meant.
    References: PyTorch documentation, "Autograd mechanics", section "Setting requires_grad".
    """

    code, variant, formerly = "UPD004", "frozen-layers", "frozen"
    places = ("freeze",)
    stage, is_exact, is_local = Stage.PROGRAM, True, True
    needs = frozenset({"gradient"})
    wakes_on = where("gradient_state", lambda states: states == GradientState.FROZEN)
    meaning = "These layers stay as they were when the training began"
    remedies = (UNFREEZE,)

    _frozen = LayerValues(np.bool_, False)

    def __init__(self) -> None:
        self._first_step = 0

    def observe(self, view: FrameView) -> Judgement | None:
        states, ids = view.row("gradient_state"), view.ids("gradient")
        if states is None or ids is None:
            return None
        now = states == GradientState.FROZEN
        if np.array_equal(now, self._frozen[ids]):
            return self.stay() if now.any() else None
        self._frozen[ids] = np.where(np.isnan(states), self._frozen[ids], now)
        layers = tuple(view.layout.in_order(np.flatnonzero(self._frozen)))
        if not layers:
            return self.end()
        if not self.is_open:
            self._first_step = view.step
        return self.hold(layers, lambda: self._describe(view.layout, layers))

    def _describe(self, layout: LayerIndex, layers: tuple[int, ...]) -> Judgement:
        parameters = sum(layout.layers[i].parameter_count for i in layers)
        many = "One layer is" if len(layers) == 1 else f"{count_of(len(layers), 'layer')} are"
        summary = f"{many} frozen: {name_layers(layout, layers)}."
        how = f"requires_grad is False for {count_of(len(layers), 'layer')} with {parameters:,} parameters"
        evidence = (Evidence("gradient_state", None, GradientState.FROZEN, None, how),)
        return Judgement(Severity.INFO, layers, self._first_step, 1.0, summary, evidence)
