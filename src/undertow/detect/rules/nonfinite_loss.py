"""NUM002."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import FrameView
from undertow.detect.rule import Said, Verdict
from undertow.schema.findings import Evidence
from undertow.schema.severity import Severity


class NonfiniteLoss:
    """The loss is NaN or infinite.

    What it sees
    ------------
    The loss that `backward` was called on, with any loss scale removed. When the frame has activations, the
    first module in forward order with a non-finite output is named; otherwise the run's journal names the
    operation that first produced the value, found by walking the graph of that very loss.

    Why it is bad
    -------------
    Every gradient of a NaN loss is NaN, so the next optimizer step destroys the weights.

    When it is wrong
    ----------------
    A step that a loss scaler skipped did no harm: it is only noted. A loss that is infinite by definition for
    some batches (a masked log-likelihood with an empty mask) is still a loss no optimizer can follow.

    References
    ----------
    Goodfellow, Bengio, Courville, "Deep Learning", 2016, section 4.1 (overflow and underflow).
    """

    code: ClassVar[str] = "NUM002"

    def __init__(self) -> None:
        self._open: Verdict | None = None
        self._noted: Verdict | None = None

    def grow(self, count: int) -> None:
        """Nothing is kept per layer."""

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        loss = view.frame.scalars.get("loss")
        if loss is None:
            return ()
        if math.isfinite(loss):
            ended = [Verdict(v.key, holds=False) for v in (self._open, self._noted) if v is not None]
            self._open = self._noted = None
            return tuple(ended)
        if view.skipped:
            if self._noted is None:
                self._noted = _verdict(view, loss, "skipped", Severity.INFO)
            return (self._noted,)
        if self._open is None:
            self._open = _verdict(view, loss, "loss", Severity.CRITICAL)
        return (self._open,)

    @property
    def resting(self) -> bool:
        return self._open is None and self._noted is None

    def news(self, batch: FrameBatch) -> Flags:
        return ~np.isfinite(batch.scalar("loss", absent=0.0))

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()


def _verdict(view: FrameView, loss: float, key: str, severity: Severity) -> Verdict:
    word = "NaN" if math.isnan(loss) else "infinite"
    summary = f"The loss turned {word} at step {view.step}"
    summary += "; the loss scaler skipped the step." if key == "skipped" else "."
    evidence = [Evidence("loss", None, loss, None, f"the loss of step {view.step} is {loss}")]
    layers: tuple[int, ...] = ()
    counts = view.row("activation_nonfinite_count")
    ids = view.ids("activation")
    if counts is not None and ids is not None:
        bad = view.layout.in_order(ids[counts > 0])
        if bad:
            layers = (bad[0],)
            number = float(counts[int(np.flatnonzero(ids == bad[0])[0])])
            how = "the first module in forward order whose output was non-finite"
            evidence.append(Evidence("activation_nonfinite_count", view.layout.path(bad[0]), number, 0.0, how))
    return Verdict(key, True, severity, layers, view.step, 1.0, summary, tuple(evidence))
