"""NUM001: a gradient is NaN or infinite."""

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine import Condition, FrameView, Judgement, LayerValues, Stage, where
from undertow.detect.features.nonfinite_outputs import first_nonfinite_output
from undertow.detect.features.remedies import FIND_THE_OPERATION, GUARD_THE_OPERATION, SKIP_BAD_STEPS
from undertow.detect.features.wording import count_of, name_layers
from undertow.schema import Evidence, Severity


class NonfiniteGradient(Condition):
    """A gradient holds NaN or infinity.

    What it sees: The number of NaN and infinite elements of every gradient, after the loss scale is removed and before
        clipping. Of all layers hit at the first step, the one closest to the loss is listed first: the backward pass
        runs from the loss to the input, so what lies between it and the next finite layer produced the value.
    Why it is bad: The optimizer writes the value into the weights. From then on every output is NaN and the run is
        lost, though the loop goes on. Clipping by norm does not help: NaN divided by NaN spreads to every layer.
    When it is wrong: The counts are exact. Steps that a loss scaler skips are left out: the weights never see those
        gradients.
    References: Micikevicius et al., "Mixed Precision Training", 2018 (arXiv 1710.03740), on loss scaling.
    """

    code, variant, formerly = "NUM001", "nonfinite-gradient", "gradient"
    places = ("unsafe",)
    stage, is_exact = Stage.NONFINITE, True
    meaning = "The optimizer writes such a gradient into the weights, and from there nothing recovers"
    remedies = (GUARD_THE_OPERATION, FIND_THE_OPERATION, SKIP_BAD_STEPS)
    needs = frozenset({"gradient"})
    wakes_on = where("gradient_nonfinite_count", lambda counts: counts > 0)

    _bad = LayerValues(np.bool_, False)

    def observe(self, view: FrameView) -> Judgement | None:
        counts, ids = view.row("gradient_nonfinite_count"), view.ids("gradient")
        if view.skipped or counts is None or ids is None:
            return None
        hit, measured = counts > 0, ~np.isnan(counts)
        if not hit.any() and not self.is_open:
            return None
        self._bad[ids[measured]] = hit[measured]
        if hit.any():
            return self.hold(True, lambda: self._describe(view, ids, counts))
        # Another optimizer's frame says nothing about the layers that were hit.
        return None if self._bad.any() else self.end()

    def _describe(self, view: FrameView, ids: NDArray[np.int32], counts: NDArray[np.float32]) -> Judgement:
        layout, bad = view.layout, ids[counts > 0]
        origin = layout.closest_to_the_loss(bad)
        layers = (*origin, *(i for i in reversed(layout.in_order(bad)) if i not in origin))
        path = layout.path(layers[0])
        summary = f"The gradient of {path} turned non-finite at step {view.step}"
        others = len(layers) - 1
        summary += f", and with it those of {count_of(others, 'other layer')}." if others else "."
        evidence = [
            Evidence("gradient_nonfinite_count", path, float(counts[ids == layers[0]][0]), 0.0,
                     "NaN or infinite elements where the backward pass first turned non-finite, closest to the loss"),
            Evidence("gradient_nonfinite_count", None, None, None,
                     f"{len(layers)} of {int(np.sum(~np.isnan(counts)))} measured layers were hit at step {view.step}; "
                     f"the first in forward order is {name_layers(layout, layout.in_order(layers)[:1])}"),
        ]  # fmt: skip
        output, loss = first_nonfinite_output(view), view.scalar("loss")
        if output is not None:
            evidence.append(output)
        if np.isfinite(loss):
            how = "the loss of the same step was still finite, so the fault is in the backward pass"
            evidence.append(Evidence("loss", None, loss, None, how))
        return Judgement(Severity.CRITICAL, layers, view.step, 1.0, summary, tuple(evidence))
