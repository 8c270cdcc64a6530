"""A step in a few numbers. The names are always these, however many layers a model has."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from undertow.schema import QUANTITIES, Frame, Health, Severity, health_of

_SCALARS = {
    "loss": "loss",
    "val_loss": "val_loss",
    "lr": "learning_rate",
    "gradient_norm_total": "gradient_norm",
    "clip_coefficient": "clip_coefficient",
    "loss_scale": "loss_scale",
    "step_time": "step_time",
}
_SPREAD = ("gradient_norm", "update_ratio", "weight_norm")
_COUNTED = ("gradient_nonfinite_count", "weight_nonfinite_count")
NAMES = (
    *_SCALARS.values(),
    *(f"{quantity}_{part}" for quantity in _SPREAD for part in ("min", "median", "max")),
    *_COUNTED,
    "health",
    *(f"findings_{severity}" for severity in Severity),
)


def digest(frame: Frame) -> dict[str, float]:
    """Scalars as they are; of quantities the smallest, median and largest over layers where they are finite."""
    found = {name: float(frame.scalars[scalar]) for scalar, name in _SCALARS.items() if scalar in frame.scalars}
    for quantity in _SPREAD:
        block = frame.blocks.get(QUANTITIES[quantity].stream)
        if block is None:
            continue
        values = block.quantity(quantity)
        values = values[np.isfinite(values)]
        if len(values):
            found[f"{quantity}_min"] = float(values.min())
            found[f"{quantity}_median"] = float(np.median(values))
            found[f"{quantity}_max"] = float(values.max())
    for quantity in _COUNTED:  # what a spread over finite values leaves out
        block = frame.blocks.get(QUANTITIES[quantity].stream)
        if block is not None:
            found[quantity] = float(np.nansum(block.quantity(quantity), dtype=np.float64))
    return found


def standing(severities: Iterable[Severity]) -> dict[str, float]:
    """Health from 0 (healthy) to 3 (critical), and how many findings of each severity there have been."""
    found = list(severities)
    counts = {f"findings_{severity}": float(found.count(severity)) for severity in Severity}
    return {"health": float(list(Health).index(health_of(found))), **counts}
