"""First steps made by hand, for the conditions about how weights begin."""

from __future__ import annotations

from tests.detect.building import Training
from tests.detect.stacks import stack

from undertow.detect.engine.registry import conditions_of

STARTS = conditions_of("WGT003")
LINEARS = ("0:Linear", "1:Tanh", "2:Linear", "3:Tanh", "4:Linear", "5:Tanh", "6:Linear")
USUAL = 8**0.5  # the norm of an 8 × 8 matrix of scale 1


def scaled(**scales: float) -> dict[str, float]:
    """The frame of a first step: norms of weights with these scales, before an update that changed nothing."""
    return {f"{path[1:]}.weight": USUAL * scale for path, scale in scales.items()}


def start(
    rule_parts: tuple[str, ...], weights: dict[str, float], signals: dict[str, float], **scalars: float
) -> Training:
    """A first step, watched by all conditions about the start."""
    return stack(STARTS, *rule_parts).run(
        1, scalars=scalars, weight_norm=weights, update_norm=0.0, update_ratio=0.0, activation_std=signals,
        activation_sample_spread=1.0,
    )  # fmt: skip
