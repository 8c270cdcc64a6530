"""MOD001: activation checkpointing draws other dropout masks."""

import numpy as np

from undertow.detect.engine import Condition, FrameView, Judgement, LayerStreak, Limit, Stage
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Remedy, Severity


class RedrawnMasks(Condition):
    """Activation checkpointing recomputes a dropout with another mask.

    What it sees: A dropout, or anything else that draws random numbers, which runs once more in the backward pass
        because of activation checkpointing, and does not begin with the same state of the random generator as before,
        at two sampled steps in a row.
    Why it is bad: The gradient is that of another network than the one that the loss was computed with.
    When it is wrong: States that are kept are equal to the last bit, so no false alarm is known.
    References: PyTorch documentation, `torch.utils.checkpoint`: `preserve_rng_state`.
    """

    code, variant, formerly = "MOD001", "redrawn-masks", "redrawn"
    stage, is_exact = Stage.PROGRAM, True
    needs = frozenset({"activation"})
    meaning = "The gradient is that of another network than the one the loss was computed with"
    remedies = (
        Remedy(
            "keep-random-state",
            "Let checkpointing keep the state of the random generators.",
            "from torch.utils.checkpoint import checkpoint\n\n"
            "out = checkpoint(block, x, use_reentrant=False, preserve_rng_state=True)",
            "Saving the state takes a little time at every call.",
            when_not="Nothing inside of what is checkpointed draws random numbers.",
        ),
    )

    patience = Limit.chance(2, "sampled steps in a row; states of a generator that are kept are equal to the last bit")

    def __init__(self) -> None:
        self._apart = LayerStreak()

    def observe(self, view: FrameView) -> Judgement | None:
        row, ids = view.row("recomputed_apart"), view.ids("activation")
        if row is None or ids is None:
            return None
        known = ~np.isnan(row)
        if not known.any():
            return None
        self._apart.end(ids[known & (row == 0)])
        self._apart.hold(ids[known & (row == 1)], view.step)
        due = np.flatnonzero(self._apart.length >= self.patience)
        if not len(due):
            return self.end()
        members = _innermost(view, view.layout.in_order(due))
        return self.hold(members, lambda: self._describe(view, members))

    def _describe(self, view: FrameView, members: tuple[int, ...]) -> Judgement:
        how = "recomputed in the backward pass with another state of the random generator"
        evidence = tuple(Evidence("recomputed_apart", view.layout.path(i), 1.0, 0.0, how) for i in members[:3])
        verb = "draws" if len(members) == 1 else "draw"
        summary = (
            f"{name_layers(view.layout, members)} {verb} new random numbers when checkpointing recomputes the "
            "forward pass: loss and gradient use different dropout masks."
        )
        return Judgement(Severity.SEVERE, members, self._apart.began(members), 0.97, summary, evidence)


def _innermost(view: FrameView, members: list[int]) -> tuple[int, ...]:
    """A block draws because a part of it does."""
    paths = [view.layout.path(i) for i in members]
    return tuple(
        i
        for i, path in zip(members, paths, strict=True)
        if not any(other.startswith(f"{path}.") for other in paths if other != path)
    )
