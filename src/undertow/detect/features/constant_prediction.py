"""The loss of the best answer that is the same for every sample: what a model pays that knows the targets only."""

import math

from undertow.detect.engine import FrameView, Limit
from undertow.schema import LossKind, LossReduction

_OF_LABELS = (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD)


class ConstantPrediction:
    """From all targets seen so far. Of labels it is their entropy, which is less than the logarithm of their number
    where some are rare; of numbers it is their variance.
    """

    __slots__ = ("_batches", "_factor", "_labels", "_loss", "_shared", "_variance", "is_of_labels")

    labels_to_a_class = Limit(50.0, "of those in use, to know the entropy of all labels to one per cent")

    def __init__(self) -> None:
        self._loss, self._factor = math.nan, 1.0
        self.is_of_labels = False
        self._labels = 0.0
        self._shared = False
        self._variance, self._batches = 0.0, 0

    def observe(self, view: FrameView) -> None:
        kind, factor = view.scalar("loss_kind"), abs(view.scalar("loss_factor"))
        if math.isnan(kind) or view.scalar("loss_reduction") != LossReduction.MEAN:
            return
        if not abs(factor - self._factor) < 0.01 * factor and self._batches + self._labels > 0:
            self._shared = True
        self._factor = factor if factor > 0 else 1.0
        entropy, deviation = view.scalar("label_entropy_pooled"), view.scalar("target_std")
        if kind in _OF_LABELS and entropy > 0:
            self._labels += view.scalar("loss_rows")
            if self._labels > self.labels_to_a_class * math.exp(entropy):  # of fewer it comes out too low
                self._loss, self.is_of_labels = entropy, True
        elif kind == LossKind.MEAN_SQUARE and deviation > 0:
            self._batches += 1
            self._variance += (deviation**2 - self._variance) / self._batches
            self._loss = self._variance

    def loss_near(self, level: float) -> float:
        """Its loss in the units of the run; NaN while too few targets were seen, or of another kind of loss.

        A term that counts half may be one of two alike, as in contrastive losses: of its own size and that of both,
        the one next to the level. One whose factor changes shares a whole with others, as where samples are mixed.
        """
        if self._shared:
            return self._loss
        own, whole = self._factor * self._loss, self._loss
        return min(own, whole, key=lambda one: abs(math.log(one / level))) if level > 0 and own > 0 else own


def commonest_share(entropy: float, classes: int) -> float:
    """The largest share that one of so many classes can have, where their entropy is known; 1 where it is not."""
    low, high = 1.0 / classes, 1.0
    if not 0 < entropy < math.log(classes):
        return low if entropy > 0 else high
    for _ in range(20):  # the entropy falls as the share grows, all other classes being equally common
        share = 0.5 * (low + high)
        rest = 1.0 - share
        of_share = -share * math.log(share) - rest * math.log(rest / (classes - 1))
        low, high = (share, high) if of_share > entropy else (low, share)
    return high
