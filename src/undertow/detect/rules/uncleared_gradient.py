"""GRD007."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.consecutive import LayerStreak, grown
from undertow.detect.engine.view import FrameView
from undertow.detect.features.wording import name_layers
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity

PATIENCE = 3


class UnclearedGradient:
    """Gradients are not cleared between optimizer steps.

    What it sees
    ------------
    Whether the gradient that an optimizer used in its previous step was still there when the next backward pass
    added to it, at three steps in a row. Micro-batches that lead to the same step are not counted: only what
    survives a step.

    Why it is bad
    -------------
    Every step then follows the sum of all gradients since the start, most of them of weights long gone. The
    gradient grows about linearly with the step and training usually diverges, or learns far less than it could.

    When it is wrong
    ----------------
    Carrying gradients over a step on purpose is very rare; optimizers have momentum for it. Parameters that no
    optimizer holds are not counted here, nor are those that keep their last gradient because the model no longer uses
    them (see UPD003).

    References
    ----------
    PyTorch recipe, "Zeroing out gradients in PyTorch".
    Humbatova et al., "Taxonomy of Real Faults in Deep Learning Systems", 2020 (arXiv 1910.11015).
    """

    code: ClassVar[str] = "GRD007"

    def __init__(self) -> None:
        self._carried = LayerStreak()
        self._held: NDArray[np.bool_] = np.zeros(0, bool)
        self._norm: NDArray[np.float32] = np.zeros(0, np.float32)  # of the latest gradient
        self._open: Verdict | None = None
        self._members: NDArray[np.bool_] = np.zeros(0, bool)

    def grow(self, count: int) -> None:
        self._carried.grow(count)
        self._held = grown(self._held, count, False)
        self._norm = grown(self._norm, count, np.nan)
        self._members = grown(self._members, count, False)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        flags, ids = view.row("gradient_carried"), view.ids("gradient")
        if flags is None or ids is None:
            return ()
        measured = ~np.isnan(flags)
        holders, zeros = view.row("gradient_optimizer"), view.row("gradient_zero_fraction")
        assert holders is not None
        assert zeros is not None
        held = (holders >= 0) & ~(zeros == 1)
        self._held[ids[measured]] = held[measured]
        carried = (flags == 1) & held
        self._carried.end(ids[measured & ~carried])
        carried &= ~self._is_left_behind(view, ids)
        if not carried.any() and self._open is None:
            return ()
        self._carried.hold(ids[carried], view.step)
        members = self._carried.length >= PATIENCE
        if not members.any():
            if self._open is None:
                return ()
            self._open = None
            return (Verdict("carried", holds=False),)
        if self._open is None or not np.array_equal(members, self._members):
            self._members = members
            self._open = self._verdict(view, members)
        return (self._open,)

    def _is_left_behind(self, view: FrameView, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Nothing is added to a gradient that stays the same to the last bit: its parameter is no longer used."""
        norms = view.row("gradient_norm")
        assert norms is not None
        same = norms == self._norm[ids]
        known = ~np.isnan(norms)
        self._norm[ids[known]] = norms[known]
        return same

    @property
    def resting(self) -> bool:
        return self._open is None and not self._carried.length.any()

    def news(self, batch: FrameBatch) -> Flags:
        if not batch.has("gradient"):
            return batch.none()
        flags = batch.row("gradient_carried")
        held = (batch.row("gradient_optimizer") >= 0) & (batch.row("gradient_zero_fraction") != 1)
        remembered = np.where(np.isnan(flags), flags, held)
        return batch.flags("gradient", flags == 1) | batch.changed("gradient", remembered)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        """The latest gradients are remembered."""
        if batch.frames_with("gradient", first, last):
            ids, norms = batch.latest("gradient_norm", first, last)
            self._norm[ids] = norms
        return ()

    def _verdict(self, view: FrameView, members: NDArray[np.bool_]) -> Verdict:
        layout = view.layout
        chosen = np.flatnonzero(members)
        ordered = layout.in_order(chosen)
        first_step = int(self._carried.since[chosen].min())
        total = view.scalar("gradient_norm_total")
        evidence = (
            Evidence("gradient_carried", layout.path(ordered[0]), 1.0, 0.0,
                     f"still there from the previous step at {int(self._carried.length[chosen].min())} steps in a row"),
            Evidence("gradient_norm_total", None, None if np.isnan(total) else total, None,
                     f"norm of all gradients at step {view.step}; it grows with every step that adds to it"),
        )  # fmt: skip
        if len(chosen) >= int(self._held.sum()):
            summary = "Gradients are never cleared: every step adds to the gradients of all steps before it."
            # The loop is at fault, no layer of it.
            return Verdict("carried", True, Severity.SEVERE, (), first_step, 0.99, summary, evidence)
        summary = f"The gradients of {name_layers(layout, ordered)} are never cleared; those of other layers are."
        return Verdict("carried", True, Severity.SEVERE, tuple(ordered), first_step, 0.97, summary, evidence)
