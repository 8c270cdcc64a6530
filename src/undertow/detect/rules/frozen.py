"""UPD004."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import count_of, name_layers
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.quantities import GradientState
from undertow.schema.severity import Severity


class Frozen:
    """Parameters are frozen on purpose.

    What it sees
    ------------
    Parameters with `requires_grad` set to False. They are listed in one finding, from the step at which the first
    of them was seen frozen; the list follows the model when layers are frozen or released later.

    Why it is bad
    -------------
    It is not: fine-tuning freezes layers on purpose. It is reported so that a layer frozen by mistake can be seen.

    When it is wrong
    ----------------
    It is a remark, never an alarm. Look once whether the list is the one you meant.

    References
    ----------
    PyTorch documentation, "Autograd mechanics", section "Setting requires_grad".
    """

    code: ClassVar[str] = "UPD004"

    def __init__(self) -> None:
        self._frozen: NDArray[np.bool_] = np.zeros(0, bool)
        self._first_step = 0
        self._open: Verdict | None = None

    def grow(self, count: int) -> None:
        self._frozen = grown(self._frozen, count, False)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        states, ids = view.row("gradient_state"), view.ids("gradient")
        if states is None or ids is None:
            return ()
        now = states == GradientState.FROZEN
        if np.array_equal(now, self._frozen[ids]):
            return (self._open,) if self._open is not None and now.any() else ()
        self._frozen[ids] = np.where(np.isnan(states), self._frozen[ids], now)
        layers = tuple(view.layout.in_order(np.flatnonzero(self._frozen)))
        if not layers:
            if self._open is None:
                return ()
            self._open = None
            return (Verdict("frozen", holds=False),)
        if self._open is None:
            self._first_step = view.step
        elif self._open.layers == layers:
            return (self._open,)
        parameters = sum(view.layout.layers[i].parameter_count for i in layers)
        summary = f"{count_of(len(layers), 'layer')} are frozen: {name_layers(view.layout, layers)}."
        if len(layers) == 1:
            summary = f"One layer is frozen: {name_layers(view.layout, layers)}."
        how = f"requires_grad is False for {count_of(len(layers), 'layer')} with {parameters:,} parameters"
        evidence = (Evidence("gradient_state", None, GradientState.FROZEN, None, how),)
        self._open = Verdict("frozen", True, Severity.INFO, layers, self._first_step, 1.0, summary, evidence)
        return (self._open,)

    @property
    def resting(self) -> bool:
        return True

    def news(self, batch: FrameBatch) -> Flags:
        if not batch.has("gradient"):
            return batch.none()
        states = batch.row("gradient_state")
        if self._open is None and not (states == GradientState.FROZEN).any():
            return batch.none()
        return batch.differs("gradient", states)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        """The same layers are frozen as in the frame before: what is said once is said of all."""
        places = batch.frames_with("gradient", first, last)
        if self._open is None or not places:
            return ()
        said = self.observe(batch.view(places[0]))
        return [(place, said) for place in dict.fromkeys((places[0], places[-1]))]
