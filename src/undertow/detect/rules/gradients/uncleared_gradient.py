"""GRD007: gradients are not cleared."""

import numpy as np

from undertow.detect.engine import (
    Condition,
    FrameView,
    Judgement,
    LayerStreak,
    LayerValues,
    Limit,
    Stage,
    changed,
    where,
)
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
    places = ("backward",)
    stage, is_exact = Stage.PROGRAM, True
    meaning = "Every update follows the sum of all earlier gradients, which no longer fit the weights"
    remedies = (CLEAR_GRADIENTS,)
    needs = frozenset({"gradient"})
    wakes_on = where("gradient_carried", lambda flags: flags == 1) | changed("gradient_optimizer")

    patience = Limit.chance(3, "steps in a row: by the third it is no single step left out on purpose")

    _held = LayerValues(np.bool_, False)  # by an optimizer
    _norm = LayerValues(np.float32, np.nan)  # of the latest gradient

    def __init__(self) -> None:
        self._carried = LayerStreak()

    @property
    def is_calm(self) -> bool:
        return not self._carried.length.any()

    def observe(self, view: FrameView) -> Judgement | None:
        ids, flags, norms = view.ids("gradient"), view.row("gradient_carried"), view.row("gradient_norm")
        holders, zeros = view.row("gradient_optimizer"), view.row("gradient_zero_fraction")
        if ids is None or flags is None or norms is None or holders is None or zeros is None:
            return None
        measured, held = ~np.isnan(flags), (holders >= 0) & ~(zeros == 1)
        self._held[ids[measured]] = held[measured]
        carried = (flags == 1) & held
        self._carried.end(ids[measured & ~carried])
        # Nothing is added to a gradient that stays the same to the last bit: its parameter is no longer used.
        self._carried.hold(ids[carried & (norms != self._norm[ids])], view.step)
        self._norm[ids] = np.where(np.isnan(norms), self._norm[ids], norms)
        return self.hold_of(view, np.flatnonzero(self._carried.length >= self.patience), self._describe)

    def _describe(self, view: FrameView, layers: tuple[int, ...]) -> Judgement:
        layout, chosen = view.layout, list(layers)
        first_step, least = int(self._carried.since[chosen].min()), int(self._carried.length[chosen].min())
        evidence = (
            Evidence("gradient_carried", layout.path(layers[0]), 1.0, 0.0,
                     f"still there from the previous step at {least} steps in a row"),
            Evidence("gradient_norm_total", None, known(view.scalar("gradient_norm_total")), None,
                     f"norm of all gradients at step {view.step}; it grows with every step that adds to it"),
        )  # fmt: skip
        if len(layers) >= int(self._held.sum()):
            summary = "Gradients are never cleared: every step adds to the gradients of all steps before it."
            # The loop is at fault, no layer of it.
            return Judgement(Severity.SEVERE, (), first_step, 0.99, summary, evidence)
        summary = f"The gradients of {name_layers(layout, layers)} are never cleared; those of other layers are."
        return Judgement(Severity.SEVERE, layers, first_step, 0.97, summary, evidence)
