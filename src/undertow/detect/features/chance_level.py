"""What a loss function gives for a model that has learnt nothing: the natural scale to compare a loss with."""

import math

from undertow.detect.engine import FrameView
from undertow.schema import LossKind


def chance_level(view: FrameView) -> float:
    """Of one loss, averaged over its rows, where all answers are equally likely; NaN when that cannot be known."""
    kind = view.scalar("loss_kind")
    if kind in (LossKind.CROSS_ENTROPY, LossKind.NEGATIVE_LOG_LIKELIHOOD):
        classes = view.scalar("loss_classes")
        return math.log(classes) if classes > 1 else math.nan
    if kind in (LossKind.BINARY_OF_PROBABILITIES, LossKind.BINARY_OF_LOGITS):
        return math.log(2.0)
    if kind == LossKind.MEAN_SQUARE:  # of predictions that know nothing about their targets
        off = view.scalar("prediction_mean") - view.scalar("target_mean")
        return view.scalar("target_std") ** 2 + view.scalar("prediction_std") ** 2 + off**2
    return math.nan
