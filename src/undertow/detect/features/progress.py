"""Whether training gets anywhere: what a statistical rule asks before it calls something odd a fault."""

import math

from undertow.detect.engine import FrameView, Limit
from undertow.detect.features.loss_trend import Loss
from undertow.schema import LossKind

_GAINED = Limit(4.0, "deviations of a single loss: a median of nine batches hardly strays by two")
_REMAINING = Limit(0.9, "of the starting loss: learning the mean of the labels alone gains a few per cent")
_TRAINED_BEFORE = Limit(0.5, "of ln(classes): a cross-entropy that starts below it was trained before")


def has_fallen(loss: Loss | None, since: float) -> bool:
    """As `has_learnt`, counted from another level of the loss than that of the start."""
    if loss is None:
        return False
    gained = since - loss.level
    return gained > _GAINED * loss.noise and not (loss.positive and loss.level > _REMAINING * since)


def has_learnt(loss: Loss | None) -> bool:
    """The loss is clearly below its start: beyond the noise, and by a tenth where that can be said."""
    return loss is not None and loss.gain > _GAINED and not loss.remaining > _REMAINING


def starts_low(view: FrameView) -> bool:
    """The loss began far below chance level: the model was trained before."""
    loss = view.loss
    if loss is None or view.scalar("loss_kind") != LossKind.CROSS_ENTROPY:
        return False
    return loss.start < _TRAINED_BEFORE * math.log(max(view.scalar("loss_classes"), 2.0))
