"""The rules, one file each; they never import each other."""

from __future__ import annotations

from undertow.detect.rule import Rule
from undertow.detect.rules.conflicting_gradient import ConflictingGradient
from undertow.detect.rules.exploding_gradient import ExplodingGradient
from undertow.detect.rules.frozen import Frozen
from undertow.detect.rules.gradient_spike import GradientSpike
from undertow.detect.rules.growing_weights import GrowingWeights
from undertow.detect.rules.large_update import LargeUpdate
from undertow.detect.rules.never_updated import NeverUpdated
from undertow.detect.rules.noisy_gradient import NoisyGradient
from undertow.detect.rules.oscillating_gradient import OscillatingGradient
from undertow.detect.rules.over_clipping import OverClipping
from undertow.detect.rules.shrinking_weights import ShrinkingWeights
from undertow.detect.rules.small_update import SmallUpdate
from undertow.detect.rules.symmetric_weights import SymmetricWeights
from undertow.detect.rules.uncleared_gradient import UnclearedGradient
from undertow.detect.rules.vanishing_gradient import VanishingGradient
from undertow.detect.rules.weight_drift import WeightDrift
from undertow.detect.rules.weight_outliers import WeightOutliers
from undertow.detect.rules.zero_gradient import ZeroGradient

RULES: tuple[type[Rule], ...] = (
    ZeroGradient,
    VanishingGradient,
    ExplodingGradient,
    GradientSpike,
    OscillatingGradient,
    NoisyGradient,
    ConflictingGradient,
    OverClipping,
    UnclearedGradient,
    NeverUpdated,
    LargeUpdate,
    SmallUpdate,
    Frozen,
    SymmetricWeights,
    ShrinkingWeights,
    WeightOutliers,
    GrowingWeights,
    WeightDrift,
)
