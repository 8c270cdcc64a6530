"""NUM001."""

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
from undertow.schema.severity import Severity

# A loss scaler starts at 2**16 and halves on every overflow: ten in a row is as far as a healthy start goes.
PATIENCE_WITH_A_SCALER = 10
STUCK_SCALER = 30


class NonfiniteGradient:
    """A gradient holds NaN or infinity.

    What it sees
    ------------
    The number of NaN and infinite elements of every gradient, counted after the loss scale is removed and
    before clipping. The first layer listed is the one where the backward pass turned non-finite: gradients
    flow from the loss to the input, so of all layers hit at the first step it is the one closest to the loss.
    What lies between it and the next layer that is still finite produced the value.

    Why it is bad
    -------------
    The optimizer writes the value into the weights. From then on every output is NaN and the run is lost,
    though the loop goes on. Clipping by norm does not help: NaN divided by NaN spreads to every layer.

    When it is wrong
    ----------------
    Mixed precision with a loss scaler overflows now and then on purpose: the scaler skips the step and lowers
    its scale. Skipped steps are therefore only noted, unless more than ten follow one another.

    References
    ----------
    Micikevicius et al., "Mixed Precision Training", 2018 (arXiv 1710.03740), on loss scaling.
    PyTorch documentation, "Automatic Mixed Precision examples".
    """

    code: ClassVar[str] = "NUM001"

    def __init__(self) -> None:
        self._skips = 0
        self._first_skip = 0
        self._bad: NDArray[np.bool_] = np.zeros(0, bool)
        self._open: Verdict | None = None

    def grow(self, count: int) -> None:
        self._bad = grown(self._bad, count, False)

    def observe(self, view: FrameView) -> tuple[Verdict, ...]:
        if view.skipped:
            return self._skipped(view)
        verdicts: list[Verdict] = []
        if self._skips:
            self._skips = 0
            verdicts.append(Verdict("scaler", holds=False))
        counts = view.row("gradient_nonfinite_count")
        if counts is not None:
            hit = counts > 0
            now = bool(hit.any())
            if now and self._open is None:
                self._open = self._begin(view, counts)
            if self._open is not None:
                # Another optimizer's frame says nothing about the layers that were hit.
                self._bad[view.ids("gradient")[~np.isnan(counts)]] = hit[~np.isnan(counts)]  # pyright: ignore[reportOptionalSubscript]
                if now:
                    verdicts.append(self._open)
                elif not self._bad.any():
                    self._open = None
                    verdicts.append(Verdict("gradient", holds=False))
        return tuple(verdicts)

    @property
    def resting(self) -> bool:
        return not self._skips and self._open is None

    def news(self, batch: FrameBatch) -> Flags:
        if not batch.has("gradient"):
            return batch.skipped
        return batch.skipped | batch.flags("gradient", batch.row("gradient_nonfinite_count") > 0)

    def pass_over(self, batch: FrameBatch, first: int, last: int) -> Sequence[Said]:
        return ()

    def _skipped(self, view: FrameView) -> tuple[Verdict, ...]:
        """A loss scaler saw the overflow and skipped the step: its normal work, up to a point."""
        if self._skips == 0:
            self._first_skip = view.step
        self._skips += 1
        severity = Severity.INFO
        if self._skips > STUCK_SCALER:
            severity = Severity.SEVERE
        elif self._skips > PATIENCE_WITH_A_SCALER:
            severity = Severity.MODERATE
        counts = view.row("gradient_nonfinite_count")
        ids = view.ids("gradient")
        layers: tuple[int, ...] = ()
        if severity.is_alarm and counts is not None and ids is not None:
            bad = ids[counts > 0]
            layers = _origin_first(view, bad) if len(bad) else ()
        scale = view.scalar("loss_scale")
        summary = f"The loss scaler skipped {count_of(self._skips, 'step')} in a row because gradients overflowed; " + (
            "nothing is being learnt." if severity.is_alarm else "it lowers its scale, which is its normal work."
        )
        evidence = (
            Evidence("step_skipped", None, float(self._skips), float(PATIENCE_WITH_A_SCALER),
                     "steps skipped in a row, beside the most a healthy start needs"),
            Evidence("loss_scale", None, None if np.isnan(scale) else scale, None, "scale at the latest skipped step"),
        )  # fmt: skip
        return (Verdict("scaler", True, severity, layers, self._first_skip, 1.0, summary, evidence),)

    def _begin(self, view: FrameView, counts: NDArray[np.float32]) -> Verdict:
        ids = view.ids("gradient")
        assert ids is not None
        hit = counts > 0
        layers = _origin_first(view, ids[hit])
        origin = layers[0]
        path = view.layout.path(origin)
        measured = int(np.sum(~np.isnan(counts)))
        number = float(counts[hit][list(ids[hit]).index(origin)])
        summary = f"The gradient of {path} turned non-finite at step {view.step}"
        others = len(layers) - 1
        summary += f", and with it those of {count_of(others, 'other layer')}." if others else "."
        evidence = [
            Evidence("gradient_nonfinite_count", path, number, 0.0,
                     "NaN or infinite elements where the backward pass first turned non-finite, closest to the loss"),
            Evidence("gradient_nonfinite_count", None, None, None,
                     f"{len(layers)} of {measured} measured layers were hit at step {view.step}; "
                     f"the first in forward order is {name_layers(view.layout, view.layout.in_order(layers)[:1])}"),
            *_forward_state(view),
        ]  # fmt: skip
        loss = view.scalar("loss")
        if np.isfinite(loss):
            how = "the loss of the same step was still finite, so the fault is in the backward pass"
            evidence.append(Evidence("loss", None, loss, None, how))
        return Verdict("gradient", True, Severity.CRITICAL, layers, view.step, 1.0, summary, tuple(evidence))


def _origin_first(view: FrameView, bad: NDArray[np.int32]) -> tuple[int, ...]:
    """All layers hit, beginning with those closest to the loss; the others from there to the input."""
    origin = view.layout.closest_to_the_loss(bad)
    known = set(origin)
    rest = [i for i in reversed(view.layout.in_order(bad)) if i not in known]
    return (*origin, *rest)


def _forward_state(view: FrameView) -> list[Evidence]:
    """Whether the forward pass was already non-finite, when this frame can tell."""
    counts = view.row("activation_nonfinite_count")
    ids = view.ids("activation")
    if counts is None or ids is None or np.isnan(counts).all():
        return []
    bad = view.layout.in_order(ids[counts > 0])
    if not bad:
        how = "no module's output was non-finite in this step: the forward pass was sound"
        return [Evidence("activation_nonfinite_count", None, 0.0, 0.0, how)]
    how = "the first module in forward order whose output was non-finite"
    number = float(counts[list(ids).index(bad[0])])
    return [Evidence("activation_nonfinite_count", view.layout.path(bad[0]), number, 0.0, how)]
