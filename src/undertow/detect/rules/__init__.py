"""The rules, one file each; they never import each other."""

from __future__ import annotations

from undertow.detect.rule import Rule
from undertow.detect.rules.frozen import Frozen
from undertow.detect.rules.large_update import LargeUpdate
from undertow.detect.rules.never_updated import NeverUpdated
from undertow.detect.rules.shrinking_weights import ShrinkingWeights
from undertow.detect.rules.small_update import SmallUpdate
from undertow.detect.rules.weight_drift import WeightDrift

RULES: tuple[type[Rule], ...] = (
    NeverUpdated,
    LargeUpdate,
    SmallUpdate,
    Frozen,
    ShrinkingWeights,
    WeightDrift,
)
