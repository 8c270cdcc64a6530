"""NUM005: gradients underflow in half precision."""

import math

import numpy as np

from undertow.detect.engine import (
    Condition,
    Consecutive,
    Flags,
    FrameBatch,
    FrameView,
    Judgement,
    LayerValues,
    Limit,
    Stage,
    Wake,
    having,
)
from undertow.detect.features.matrices import Matrices, Values, matrices_of, middle
from undertow.detect.features.wording import name_layers
from undertow.schema import Evidence, Remedy, Severity

_HALF_ROUNDING = 2.0**-12


def _with_many_zeros(batch: FrameBatch) -> Flags:
    out, matrices = batch.none(), matrices_of(batch.layout)
    if batch.has("gradient") and len(matrices):
        out[batch.frames_with("gradient")] = matrices.middles(batch, "gradient_zero_fraction") > GradientUnderflow.zeros
    return out


class GradientUnderflow(Condition):
    """Gradients are too small for half precision and turn to zero.

    What it sees: Most gradient elements are exactly zero, those left are tiny, and none is smaller than the smallest
        number of fp16. Or all are zero, in a model in fp16 or with a loss multiplied by less than a thousandth, though
        its units are alive. A matrix that once had a gradient element below that number is not in fp16.
    Why it is bad: A gradient below 6e-8 is zero in fp16, and layers far from the loss have the smallest ones: they stop
        learning first.
    When it is wrong: Zeros alone are healthy: ReLU networks and embeddings are full of them. Gradients that are small
        because of the scale of the loss are not zero in fp32.
    References: Micikevicius et al., "Mixed Precision Training", 2017 (arXiv 1710.03740).
        PyTorch documentation, "Automatic mixed precision", section "Gradient scaling".
    """

    code, variant, formerly = "NUM005", "gradient-underflow", "underflow"
    places = ("precision",)
    stage, is_standing = Stage.OPTIMIZER, True
    meaning = "Gradients outside the range of the format become zero, and those layers stop learning"
    remedies = (
        Remedy(
            "scale-the-loss",
            "Train in bfloat16, or scale the loss, so that small gradients survive in half precision.",
            'scaler = torch.amp.GradScaler("cuda")\n'
            "scaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()",
            "None; steps are skipped now and then while the scale is found.",
            when_not="The training is in float32 or bfloat16 throughout.",
        ),
    )
    needs = frozenset({"gradient", "activation"})
    wakes_on = having("activation") | Wake(_with_many_zeros)

    zeros = Limit(0.5, "of the elements, in the middle of all matrices; healthy ReLU networks have up to 0.4")
    largest = Limit(2.0**-11, "the largest element left, in the middle of all matrices; fp16 ends at 2**-24")
    loss_factor = Limit(1e-3, "what the loss is multiplied by, where all gradients are exactly zero")
    finer = Limit(0.5, "of the matrices: under autocast some are kept in float32, most are not")
    alive = Limit(0.1, "of the outputs of every module: with fewer, silent units explain the zeros")
    patience = Limit.chance(5, "measured steps in a row: one batch may be learnt already")

    _is_finer = LayerValues(np.bool_, False)  # it has had a gradient element that fp16 does not know

    def __init__(self) -> None:
        self._steps = Consecutive()
        self._silent = math.nan  # largest share of dead or saturated units of any module, when last known
        self._alive = math.nan  # smallest share of outputs of any module that are not zero
        self._factor = math.nan  # what the loss is multiplied by, when last known

    @property
    def is_calm(self) -> bool:
        return not self.is_open and not self._steps.count

    def observe(self, view: FrameView) -> Judgement | None:
        if view.ids("activation") is not None:
            self._note_outputs(view)
        matrices = matrices_of(view.layout)
        if view.skipped or view.ids("gradient") is None or view.scalar("loss") == 0 or not len(matrices):
            return None
        zeros = matrices.values(view, "gradient_zero_fraction")
        below = matrices.values(view, "gradient_fp16_underflow")
        self._is_finer[matrices.ids[below > 0]] = True
        if not self._underflows(view, matrices, zeros, below):
            self._steps.end()
            return self.end()
        if self._steps.hold(view.step) < self.patience:
            return self.stay()
        return self.hold(True, lambda: self._describe(view, matrices, zeros))

    def _note_outputs(self, view: FrameView) -> None:
        dead, flat = view.row("activation_dead_fraction"), view.row("activation_saturated_fraction")
        zeros = view.row("activation_zero_fraction")
        if dead is not None and flat is not None and not np.isnan(np.fmax(dead, flat)).all():
            self._silent = float(np.nanmax(np.fmax(dead, flat)))
        if zeros is not None and not np.isnan(zeros).all():
            self._alive = 1.0 - float(np.nanmax(zeros))

    def _underflows(self, view: FrameView, matrices: Matrices, zeros: Values, below: Values) -> bool:
        if not middle(zeros) > self.zeros or self._is_finer[matrices.ids].mean() > self.finer:
            return False
        left = zeros < 1
        if not left.any():
            return self._alive > self.alive and self._suggests_half(view, matrices)
        return not (below[left] > 0).any() and middle(matrices.values(view, "gradient_max_abs")[left]) < self.largest

    def _suggests_half(self, view: FrameView, matrices: Matrices) -> bool:
        """Weights in fp16, or a loss so small that its gradients are below fp16: what fp32 would not mind."""
        factor = abs(view.scalar("loss_factor"))
        self._factor = self._factor if math.isnan(factor) else factor
        in_half = bool((view.layout.rounding[matrices.ids] == _HALF_ROUNDING).any())
        return in_half or 0 < self._factor < self.loss_factor

    def _describe(self, view: FrameView, matrices: Matrices, zeros: Values) -> Judgement:
        layout, chosen = view.layout, np.flatnonzero(zeros > self.zeros)
        evidence = [
            Evidence("gradient_zero_fraction", layout.path(int(matrices.ids[place])), float(zeros[place]), None,
                     "share of its gradient elements exactly zero")
            for place in chosen[:3]
        ]  # fmt: skip
        if math.isfinite(self._silent):
            how = "largest share of dead or saturated units in any module: the zeros do not come from there"
            evidence.append(Evidence("activation_dead_fraction", None, self._silent, None, how))
        named = name_layers(layout, [int(i) for i in matrices.ids[chosen]])
        summary = f"Gradients underflow: most elements of {named} are lost to zero."
        # The precision is at fault, no layer of it.
        return Judgement(Severity.SEVERE, (), self._steps.since, 0.9, summary, tuple(evidence))
