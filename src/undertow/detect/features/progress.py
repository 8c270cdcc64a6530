"""Whether training gets anywhere: what a statistical rule asks before it calls something odd a fault."""

from __future__ import annotations

import math

from undertow.detect import thresholds
from undertow.detect.engine.limit import Limit
from undertow.detect.engine.view import FrameView
from undertow.detect.features.loss_trend import Loss
from undertow.schema.quantities import LossKind

TRAINED_BEFORE = Limit(0.5, "of ln(classes): a lower first cross-entropy is not that of a guess")


def has_fallen(loss: Loss | None, since: float) -> bool:
    """As `has_learnt`, counted from another level of the loss than that of the start."""
    if loss is None:
        return False
    gained = since - loss.level
    return gained > thresholds.PROGRESS_DEVIATIONS * loss.noise and not (
        loss.positive and loss.level > thresholds.PROGRESS_REMAINING * since
    )


def has_learnt(loss: Loss | None) -> bool:
    """The loss is clearly below its start: beyond the noise, and by a tenth where that can be said."""
    return (
        loss is not None
        and loss.gain > thresholds.PROGRESS_DEVIATIONS
        and not loss.remaining > thresholds.PROGRESS_REMAINING
    )


def starts_low(view: FrameView) -> bool:
    """The loss began far below chance level: the model was trained before."""
    loss = view.loss
    if loss is None or view.scalar("loss_kind") != LossKind.CROSS_ENTROPY:
        return False
    return loss.start < TRAINED_BEFORE * math.log(max(view.scalar("loss_classes"), 2.0))
