"""DST002."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from undertow.detect.condition import Condition
from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class NonfiniteRank:
    """One rank is not finite while the others are.

    What it sees
    ------------
    In distributed trainings, the loss of every rank at every step, and in measured steps the weights and gradients of
    parameters that several ranks hold. It speaks when some of them are NaN or infinite on one rank and finite on
    another, and names the rank.

    Why it is bad
    -------------
    Gradients are averaged over the ranks, so one rank's NaN is everybody's NaN after a single step. Only before that
    can be seen which rank it came from: its share of the data, its node, or its device.

    When it is wrong
    ----------------
    Steps that a loss scaler skips are left alone: the scaler deals with them. When all ranks are hit in the same step,
    nothing is said here; the codes of numerics are.

    References
    ----------
    Grattafiori et al., "The Llama 3 Herd of Models", 2024 (arXiv 2407.21783): faulty devices in long runs.
    """

    code: ClassVar[str] = "DST002"

    def __init__(self) -> None:
        self._condition = Condition("rank")

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        ranks = view.scalar("ranks")
        if math.isnan(ranks) or view.skipped:
            return ()
        rank = view.scalar("rank_nonfinite")
        if math.isnan(rank):
            return self._condition.end()
        return self._condition.hold(rank, lambda: self._verdict(view, int(rank), int(ranks)))

    @property
    def resting(self) -> bool:
        return not self._condition.is_open

    def news(self, batch: FrameBatch) -> Flags:
        return np.array(["rank_nonfinite" in frame.scalars for frame in batch.frames], bool)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def _verdict(self, view: FrameView, rank: int, ranks: int) -> Verdict:
        others = int(view.scalar("ranks_nonfinite")) - 1
        evidence = (
            Evidence("rank_nonfinite", None, float(rank), None,
                     f"the rank whose loss, gradients or weights are NaN or infinite at step {view.step}, of {ranks}"),
        )  # fmt: skip
        more = f" (and {others} more)" if others > 0 else ""
        summary = f"Rank {rank}{more} alone is not finite at step {view.step}; the average over all ranks is spoilt."
        return Verdict("rank", True, Severity.CRITICAL, (), view.step, 1.0, summary, evidence)
