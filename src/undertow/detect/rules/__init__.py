"""The rules, one file each; they never import each other."""

from __future__ import annotations

from undertow.detect.rule import Rule
from undertow.detect.rules.shrinking_weights import ShrinkingWeights
from undertow.detect.rules.weight_drift import WeightDrift

RULES: tuple[type[Rule], ...] = (
    ShrinkingWeights,
    WeightDrift,
)
