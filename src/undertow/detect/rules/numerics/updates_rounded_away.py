"""NUM005: updates are lost to rounding."""

import math

import numpy as np

from undertow.detect.engine import Condition, Consecutive, FrameView, Judgement, LayerIndex, Limit, Stage, Wake
from undertow.detect.features.matrices import matrices_of, middle
from undertow.detect.features.remedies import KEEP_A_FLOAT32_MASTER_COPY
from undertow.schema import Evidence, Severity


def _is_low_precision(layout: LayerIndex) -> bool:
    matrices = matrices_of(layout)
    return len(matrices) > 0 and bool(layout.is_low_precision[matrices.ids].all())


class UpdatesRoundedAway(Condition):
    """Weights kept in half precision hardly change: updates are smaller than their rounding.

    What it sees: Weights in fp16 or bf16 of which fewer than three in a hundred can have changed at each of ten
        measured steps, by the length of the updates, in half of the matrices.
    Why it is bad: Every other weight is rounded back to what it was, however long it is pushed one way.
    When it is wrong: Updates become small at the end of a schedule, and of a training that has learnt nearly all there
        is: neither is reported.
    References: Micikevicius et al., "Mixed Precision Training", 2017 (arXiv 1710.03740): a master copy of the weights.
    """

    code, variant, formerly = "NUM005", "updates-rounded-away", "rounding"
    places = ("precision",)
    stage, is_standing = Stage.OPTIMIZER, True
    meaning = "Changes smaller than the rounding of the format are dropped, so most weights stay as they are"
    remedies = (KEEP_A_FLOAT32_MASTER_COPY,)
    needs = frozenset({"gradient"})
    wakes_on = Wake(lambda batch: np.full(len(batch), _is_low_precision(batch.layout)))

    moved = Limit(0.03, "of the weights can have changed; healthy bf16 weights: 0.2 and more, 0.04 when all is learnt")
    patience = Limit.chance(10, "measured steps in a row: single updates round away in health, too")
    rate = Limit(0.3, "of the largest learning rate: below it, a schedule makes updates small")
    remaining = Limit(0.1, "of the first loss: below it, there is little left to learn")

    def __init__(self) -> None:
        self._steps = Consecutive()
        self._peak_rate = 0.0

    def observe(self, view: FrameView) -> Judgement | None:
        if view.skipped or view.scalar("loss") == 0 or not _is_low_precision(view.layout):
            return None
        rate = view.scalar("lr")
        self._peak_rate = max(self._peak_rate, rate)
        if view.ids("update") is None:
            return self.stay()
        matrices = matrices_of(view.layout)
        lengths, usual = matrices.values(view, "update_norm"), matrices.values(view, "weight_abs_p50")
        sizes = np.array([view.layout.layers[int(i)].parameter_count for i in matrices.ids], np.float64)
        # A weight that changes does so by two roundings at least, so this is twice the root of their share.
        moved = (lengths / np.sqrt(sizes) / (view.layout.rounding[matrices.ids] * usual) / 2.0) ** 2
        known = np.isfinite(moved) & (lengths > 0)
        still = known & (moved < self.moved)
        is_for_a_reason = rate < self.rate * self._peak_rate or (
            view.loss is not None and view.loss.remaining < self.remaining
        )
        if is_for_a_reason or not known.any() or still.sum() <= known.sum() / 2:
            self._steps.end()
            return self.end()
        if self._steps.hold(view.step) < self.patience:
            return self.stay()
        return self.hold(True, lambda: self._describe(view, middle(moved[still])))

    def _describe(self, view: FrameView, share: float) -> Judgement:
        layer = view.layout.layers[int(matrices_of(view.layout).ids[0])]
        kind = layer.dtype.removeprefix("torch.")
        how = f"share of the weights that can have changed at step {view.step}; {kind} drops changes below "
        how += f"{view.layout.rounding[layer.id]:.1g} of a weight"
        summary = (
            f"Updates are rounded away: the weights are {kind}, and at most {max(1, math.ceil(100 * share))} % of them "
            "change at a step. The others keep the values they had."
        )
        evidence = Evidence("update_norm", None, share, 1.0, how)
        return Judgement(Severity.MODERATE, (), self._steps.since, 0.8, summary, (evidence,))
