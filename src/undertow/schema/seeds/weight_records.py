"""Weights and gradients of plain arrays: moments, health, outliers, explosions, drift."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class ExplosionSeverity(StrEnum):
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


@dataclass(frozen=True, slots=True)
class ExplodingLayer:
    layer_index: int
    gradient_norm: float
    severity: ExplosionSeverity
    recommended_action: str
    layer_name: str = ""
    nonfinite_count: int = 0


@dataclass(frozen=True, slots=True)
class GradientExplosionAnalysis:
    """Norm statistics are over the finite norms; None when there is none."""

    exploding_layers: list[ExplodingLayer]
    max_gradient_norm: float | None
    mean_gradient_norm: float | None
    std_gradient_norm: float | None
    explosion_ratio: float | None
    overall_severity: ExplosionSeverity
    mitigation_recommendations: list[str]
    nonfinite_layers: list[int] = field(default_factory=list[int])
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class WeightStatistics:
    """Of the finite elements. `entropy` is that of a histogram of 64 equal bins, in bits."""

    mean: float = 0.0
    std_dev: float = 0.0
    skewness: float = 0.0
    kurtosis: float = 0.0
    entropy: float = 0.0
    min: float = 0.0
    max: float = 0.0
    zero_fraction: float = 0.0
    count: int = 0  # finite elements
    nonfinite_count: int = 0

    def accumulate(self, other: WeightStatistics) -> None:
        """Pool with another set: the moments become those of all elements together, weighted by their numbers.

        Statistics made without a `count` weigh as one element each. The entropy of a pool cannot be known from
        the two entropies; it becomes their weighted mean.
        """
        if other.count == 0 and other == WeightStatistics(nonfinite_count=other.nonfinite_count):
            self.nonfinite_count += other.nonfinite_count
            return
        if self.count == 0 and self == WeightStatistics(nonfinite_count=self.nonfinite_count):
            lost = self.nonfinite_count
            for name in WeightStatistics.__slots__:
                setattr(self, name, getattr(other, name))
            self.nonfinite_count += lost
            return
        self._pool(other)

    def _pool(self, other: WeightStatistics) -> None:
        first, second = max(1, self.count), max(1, other.count)
        total = first + second
        share, rest = first / total, second / total
        # Relative to the largest number there is, so that no power of it leaves the range of numbers.
        unit = max(abs(self.mean), abs(other.mean), self.std_dev, other.std_dev) or 1.0
        gap = other.mean / unit - self.mean / unit
        mean = (self.mean / unit + gap * rest) * unit
        parts = ((share, self, self.std_dev / unit, -gap * rest), (rest, other, other.std_dev / unit, gap * share))
        second_moment = sum(w * (std**2 + d * d) for w, _, std, d in parts)
        third = sum(w * (s.skewness * std**3 + 3 * d * std**2 + d**3) for w, s, std, d in parts)
        fourth = sum(
            w * ((s.kurtosis + 3) * std**4 + 4 * d * s.skewness * std**3 + 6 * d * d * std**2 + d**4)
            for w, s, std, d in parts
        )
        self.mean, self.std_dev = mean, second_moment**0.5 * unit
        spread = second_moment**2 > 0  # else all are equal, as far as numbers go
        self.skewness = third / second_moment**1.5 if spread and total >= 3 else 0.0
        self.kurtosis = fourth / second_moment**2 - 3 if spread and total >= 4 else 0.0
        self.entropy = share * self.entropy + rest * other.entropy
        self.zero_fraction = share * self.zero_fraction + rest * other.zero_fraction
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)
        self.count = total
        self.nonfinite_count += other.nonfinite_count

    def finalize(self, count: int) -> None:
        """Nothing is left to divide: `accumulate` pools. Kept so that code written for sums still runs."""


class WeightIssue(StrEnum):
    """Why a tensor looks ill; the sentences of `issues` and `recommendations` follow from these."""

    NONFINITE = "non-finite"
    ZEROS = "zeros"
    SKEWED = "skewed"
    HEAVY_TAILED = "heavy-tailed"
    EXTREME = "extreme"


@dataclass(frozen=True, slots=True)
class LayerWeightAnalysis:
    layer_index: int
    statistics: WeightStatistics
    health_score: float
    issues: list[str]
    recommendations: list[str]
    layer_name: str = ""
    kinds_of_issue: list[WeightIssue] = field(default_factory=list[WeightIssue])


class DistributionHealthStatus(StrEnum):
    EXCELLENT = "Excellent"
    GOOD = "Good"
    FAIR = "Fair"
    POOR = "Poor"
    CRITICAL = "Critical"


@dataclass(frozen=True, slots=True)
class DistributionHealth:
    score: float
    status: DistributionHealthStatus


class OutlierSeverity(StrEnum):
    MEDIUM = "Medium"
    HIGH = "High"


@dataclass(frozen=True, slots=True)
class WeightOutlier:
    """`z_score` is |value − mean| / std; the largest of each tensor are listed."""

    layer_index: int
    weight_index: int
    value: float
    z_score: float
    severity: OutlierSeverity
    layer_name: str = ""


@dataclass(frozen=True, slots=True)
class OutlierCount:
    """Elements beyond 3 standard deviations, beside the number a Gaussian tensor of that size would have."""

    layer_index: int
    layer_name: str
    count: int
    expected_count: float
    listed: int


@dataclass(frozen=True, slots=True)
class WeightDistributionAnalysis:
    layer_analyses: list[LayerWeightAnalysis]
    overall_statistics: WeightStatistics
    distribution_health: DistributionHealth | None
    outlier_detection: list[WeightOutlier]
    outlier_counts: list[OutlierCount] = field(default_factory=list[OutlierCount])
    statistics_by_kind: dict[str, WeightStatistics] = field(default_factory=dict[str, WeightStatistics])
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class WeightHealth:
    score: float
    issues: list[str]
    recommendations: list[str]


class WeightDriftSeverity(StrEnum):
    MINIMAL = "Minimal"
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"


@dataclass(frozen=True, slots=True)
class WeightDriftAnalysis:
    """Drift of a tensor is ‖after − before‖ / ‖before‖; `mean_drift` pools all tensors, `max_drift` is the worst."""

    mean_drift: float | None
    max_drift: float | None
    severity: WeightDriftSeverity | None
    affected_layers: list[int]
    layer_drifts: list[float | None] = field(default_factory=list[float | None])
    cosines: list[float | None] = field(default_factory=list[float | None])
    unavailable: dict[str, str] = field(default_factory=dict[str, str])
