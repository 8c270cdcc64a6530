"""Whether training gets anywhere: what a statistical rule asks before it calls something odd a fault."""

from __future__ import annotations

from undertow.detect import thresholds
from undertow.detect.loss_trend import Loss


def has_learnt(loss: Loss | None) -> bool:
    """The loss is clearly below its start: beyond the noise, and by a tenth where that can be said."""
    return (
        loss is not None
        and loss.gain > thresholds.PROGRESS_DEVIATIONS
        and not loss.remaining > thresholds.PROGRESS_REMAINING
    )
