"""Weights and gradients of plain arrays: moments, health, outliers, explosions, drift."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import NamedTuple

from undertow.schema.seeds.record import Record, record


class ExplosionSeverity(StrEnum):
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


@record
class ExplodingLayer(Record):
    layer_index: int
    gradient_norm: float
    severity: ExplosionSeverity
    recommended_action: str
    layer_name: str = ""
    nonfinite_count: int = 0


@record
class GradientExplosionAnalysis(Record):
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


@dataclass(slots=True, eq=False)
class WeightStatistics(Record):
    """Of the finite elements; None where there are none. `entropy` is that of 64 equal bins, in bits."""

    mean: float | None = 0.0
    std_dev: float | None = 0.0
    skewness: float | None = 0.0
    kurtosis: float | None = 0.0
    entropy: float | None = 0.0
    min: float | None = 0.0
    max: float | None = 0.0
    zero_fraction: float | None = 0.0
    count: int = 0  # finite elements
    nonfinite_count: int = 0
    unavailable: dict[str, str] = field(default_factory=dict[str, str])

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it grows

    @classmethod
    def of_nothing(cls, nonfinite_count: int = 0) -> WeightStatistics:
        """Of a tensor without finite elements."""
        reason = "no element is finite" if nonfinite_count else "the tensor has no elements"
        moments = dict.fromkeys(_MOMENTS)
        return cls(**moments, nonfinite_count=nonfinite_count, unavailable=dict.fromkeys(_MOMENTS, reason))

    def accumulate(self, other: WeightStatistics) -> None:
        """Pool with another set: the moments become those of all elements together, weighted by their numbers.

        Statistics made without a `count` weigh as one element each. The entropy of a pool cannot be known from
        the two entropies; it becomes their weighted mean.
        """
        lost = self.nonfinite_count + other.nonfinite_count
        if other._is_filled():
            if self._is_filled():
                self._pool(_Moments.of(self), _Moments.of(other))
            else:
                for one in fields(WeightStatistics):
                    setattr(self, one.name, getattr(other, one.name))
        self.nonfinite_count = lost

    def _is_filled(self) -> bool:
        return self.mean is not None and (self.count > 0 or any(getattr(self, name) for name in _MOMENTS))

    def _pool(self, mine: _Moments, other: _Moments) -> None:
        total = mine.elements + other.elements
        share, rest = mine.elements / total, other.elements / total
        # Relative to the largest number there is, so that no power of it leaves the range of numbers.
        unit = max(abs(mine.mean), abs(other.mean), mine.std_dev, other.std_dev) or 1.0
        gap = other.mean / unit - mine.mean / unit
        mean = (mine.mean / unit + gap * rest) * unit
        parts = ((share, mine, mine.std_dev / unit, -gap * rest), (rest, other, other.std_dev / unit, gap * share))
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
        self.entropy = share * mine.entropy + rest * other.entropy
        self.zero_fraction = share * mine.zero_fraction + rest * other.zero_fraction
        self.min, self.max = min(mine.min, other.min), max(mine.max, other.max)
        self.count = total

    def finalize(self, count: int) -> None:
        """Nothing is left to divide: `accumulate` pools. Kept so that code written for sums still runs."""


class _Moments(NamedTuple):
    """Those of at least one element: numbers all."""

    mean: float
    std_dev: float
    skewness: float
    kurtosis: float
    entropy: float
    min: float
    max: float
    zero_fraction: float
    elements: int

    @classmethod
    def of(cls, statistics: WeightStatistics) -> _Moments:
        return cls(*(getattr(statistics, name) or 0.0 for name in _MOMENTS), elements=max(1, statistics.count))


_MOMENTS = ("mean", "std_dev", "skewness", "kurtosis", "entropy", "min", "max", "zero_fraction")


class WeightIssue(StrEnum):
    """Why a tensor looks ill; the sentences of `issues` and `recommendations` follow from these."""

    NONFINITE = "non-finite"
    ZEROS = "zeros"
    SKEWED = "skewed"
    HEAVY_TAILED = "heavy-tailed"
    EXTREME = "extreme"


@record
class LayerWeightAnalysis(Record):
    layer_index: int
    statistics: WeightStatistics
    health_score: float | None
    issues: list[str]
    recommendations: list[str]
    layer_name: str = ""
    kinds_of_issue: list[WeightIssue] = field(default_factory=list[WeightIssue])
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


class DistributionHealthStatus(StrEnum):
    EXCELLENT = "Excellent"
    GOOD = "Good"
    FAIR = "Fair"
    POOR = "Poor"
    CRITICAL = "Critical"


@record
class DistributionHealth(Record):
    score: float
    status: DistributionHealthStatus


class OutlierSeverity(StrEnum):
    MEDIUM = "Medium"
    HIGH = "High"


@record
class WeightOutlier(Record):
    """`z_score` is |value − mean| / std; the largest of each tensor are listed."""

    layer_index: int
    weight_index: int
    value: float
    z_score: float
    severity: OutlierSeverity
    layer_name: str = ""


@record
class OutlierCount(Record):
    """Elements beyond 3 standard deviations, beside the number a Gaussian tensor of that size would have."""

    layer_index: int
    layer_name: str
    count: int
    expected_count: float
    listed: int


@record
class WeightDistributionAnalysis(Record):
    layer_analyses: list[LayerWeightAnalysis]
    overall_statistics: WeightStatistics
    distribution_health: DistributionHealth | None
    outlier_detection: list[WeightOutlier]
    outlier_counts: list[OutlierCount] = field(default_factory=list[OutlierCount])
    statistics_by_kind: dict[str, WeightStatistics] = field(default_factory=dict[str, WeightStatistics])
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class WeightHealth(Record):
    score: float | None
    issues: list[str]
    recommendations: list[str]
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


class WeightDriftSeverity(StrEnum):
    MINIMAL = "Minimal"
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"


@record
class WeightDriftAnalysis(Record):
    """Drift of a tensor is ‖after − before‖ / ‖before‖; `mean_drift` pools all tensors, `max_drift` is the worst."""

    mean_drift: float | None
    max_drift: float | None
    severity: WeightDriftSeverity | None
    affected_layers: list[int]
    layer_drifts: list[float | None] = field(default_factory=list[float | None])
    cosines: list[float | None] = field(default_factory=list[float | None])
    unavailable: dict[str, str] = field(default_factory=dict[str, str])
