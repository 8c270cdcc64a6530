"""The loss of the best answer that is the same for every sample: what a model pays that knows the targets only."""

from __future__ import annotations

import math

from undertow.detect import thresholds as limit
from undertow.detect.view import View
from undertow.schema.quantities import LossKind, LossReduction

_OF_LABELS = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)


class OneAnswer:
    """`loss` in the units of the run, from all targets seen so far; NaN while too few were, or of another loss.

    Of labels it is their entropy, which is less than the logarithm of their number where some are rare; of numbers it
    is their variance.
    """

    __slots__ = ("_batches", "_labels", "_variance", "is_of_labels", "loss")

    def __init__(self) -> None:
        self.loss = math.nan
        self.is_of_labels = False
        self._labels = 0.0
        self._variance, self._batches = 0.0, 0

    def observe(self, view: View) -> None:
        kind, factor = view.scalar("loss_kind"), abs(view.scalar("loss_factor"))
        if math.isnan(kind) or view.scalar("loss_reduction") != LossReduction.MEAN:
            return
        factor = factor if factor > 0 else 1.0
        entropy, deviation = view.scalar("label_entropy_pooled"), view.scalar("target_std")
        if kind in _OF_LABELS and entropy > 0:
            self._labels += view.scalar("loss_rows")
            if self._labels > limit.ONE_ANSWER_LABELS * math.exp(entropy):  # of fewer it comes out too low
                self.loss, self.is_of_labels = factor * entropy, True
        elif kind == LossKind.MEAN_SQUARE and deviation > 0:
            self._batches += 1
            self._variance += (deviation**2 - self._variance) / self._batches
            self.loss = factor * self._variance
