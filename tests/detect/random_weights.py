"""Weights as they are before any training."""

from __future__ import annotations

import math


def random_weights(*frozen: str, bound: float = 8**-0.5) -> dict[str, object]:
    """All weights as PyTorch makes them for 8 inputs; those of the frozen modules are never moved."""
    return {
        "gradient_state": dict.fromkeys(frozen, 2.0),
        "update_norm": dict.fromkeys(frozen, math.nan),
        "weight_max_abs": 0.99 * bound,
        "weight_mean": 0.0,
        "weight_std": bound / math.sqrt(3),
        "weight_kurtosis": -1.2,
        "weight_norm": {"first.weight": 1.63, "second.weight": 1.61, "third.weight": 1.66, "head.weight": 1.64},
    }
