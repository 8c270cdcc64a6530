"""GRD007: gradients are not cleared."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, Limit, Shared, Stage
from undertow.detect.features.carried_gradients import CarriedGradients
from undertow.detect.features.remedies import CLEAR_GRADIENTS
from undertow.detect.features.wording import known, name_layers
from undertow.schema import Evidence, Severity


class UnclearedGradient(Condition):
    """Gradients are not cleared between optimizer steps.

    What it sees: Whether the gradient that an optimizer used in its previous step was still there when the next
        backward pass added to it, at three steps in a row. Micro-batches that lead to the same step are not counted:
        only what survives a step.
    Why it is bad: Every step then follows the sum of all gradients since the start, most of them of weights long gone.
        The gradient grows about linearly with the step and training usually diverges, or learns far less than it could.
    When it is wrong: Carrying gradients over a step on purpose is very rare; optimizers have momentum for it.
        Parameters that no optimizer holds are not counted here, nor are those that keep their last gradient because the
        model no longer uses them (see UPD003).
    References: PyTorch recipe, "Zeroing out gradients in PyTorch".
        Humbatova et al., "Taxonomy of Real Faults in Deep Learning Systems", 2020 (arXiv 1910.11015).
    """

    code, variant, formerly = "GRD007", "uncleared-gradient", "carried"
    stage, is_exact = Stage.PROGRAM, True
    _gradients = Shared(CarriedGradients)
    meaning = "The steps follow old gradients of weights long gone, more of them every time"
    remedies = (CLEAR_GRADIENTS,)

    patience = Limit(3, "steps in a row: an exact sign, and by the third it is no single step left out on purpose")

    def observe(self, view: FrameView) -> Judgement | None:
        if view.ids("gradient") is None:
            return None
        members = self._gradients.streak.length >= self.patience
        return self.hold(members.tobytes(), lambda: self._describe(view, members)) if members.any() else self.end()

    def _describe(self, view: FrameView, members: NDArray[np.bool_]) -> Judgement:
        layout, streak, chosen = view.layout, self._gradients.streak, np.flatnonzero(members)
        ordered = layout.in_order(chosen)
        first_step = int(streak.since[chosen].min())
        evidence = (
            Evidence("gradient_carried", layout.path(ordered[0]), 1.0, 0.0,
                     f"still there from the previous step at {int(streak.length[chosen].min())} steps in a row"),
            Evidence("gradient_norm_total", None, known(view.scalar("gradient_norm_total")), None,
                     f"norm of all gradients at step {view.step}; it grows with every step that adds to it"),
        )  # fmt: skip
        if len(chosen) >= int(self._gradients.held.sum()):
            summary = "Gradients are never cleared: every step adds to the gradients of all steps before it."
            # The loop is at fault, no layer of it.
            return Judgement(Severity.SEVERE, (), first_step, 0.99, summary, evidence)
        summary = f"The gradients of {name_layers(layout, ordered)} are never cleared; those of other layers are."
        return Judgement(Severity.SEVERE, tuple(ordered), first_step, 0.97, summary, evidence)
