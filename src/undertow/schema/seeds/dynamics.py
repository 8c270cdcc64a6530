"""How training goes: convergence, phase, plateau, stability."""

from dataclasses import field
from enum import StrEnum

from undertow.schema.seeds.record import Record, record


class ConvergenceTrend(StrEnum):
    """Of the loss. A gradient norm that falls says nothing about it."""

    CONVERGING = "Converging"
    STABLE = "Stable"
    DIVERGING = "Diverging"
    OSCILLATING = "Oscillating"
    UNKNOWN = "Unknown"


class LearningPhase(StrEnum):
    INITIAL_LEARNING = "InitialLearning"
    RAPID_LEARNING = "RapidLearning"
    REFINEMENT = "Refinement"
    CONVERGENCE = "Convergence"
    PLATEAU = "Plateau"
    OVERFITTING = "Overfitting"


class PlateauSeverity(StrEnum):
    MILD = "Mild"
    MODERATE = "Moderate"
    SEVERE = "Severe"


class StabilityTrend(StrEnum):
    IMPROVING = "Improving"
    STABLE = "Stable"
    DEGRADING = "Degrading"


class StabilityOutlook(StrEnum):
    STABLE = "Stable"
    IMPROVING = "Improving"
    DETERIORATING = "Deteriorating"
    UNCERTAIN = "Uncertain"


class InstabilityType(StrEnum):
    GRADIENT_EXPLOSION = "GradientExplosion"
    GRADIENT_VANISHING = "GradientVanishing"
    OSCILLATION = "Oscillation"
    STAGNATION = "Stagnation"
    CHAOS = "Chaos"


@record
class ConvergenceIndicators(Record):
    """Scores run from −1 (surely moving away) to 1 (surely approaching); None where the series was not given."""

    gradient_convergence_score: float | None
    parameter_convergence_score: float | None
    loss_convergence_score: float | None
    convergence_trend: ConvergenceTrend
    estimated_steps_to_convergence: int | None
    steps_interval: tuple[int, int] | None = None
    loss_slope: float | None = None  # per step, over the window
    loss_slope_interval: tuple[float, float] | None = None  # 99 %
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class PlateauDetection(Record):
    is_plateau: bool | None
    plateau_duration: int | None
    plateau_severity: PlateauSeverity | None
    suggested_actions: list[str]
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class TrainingDynamics(Record):
    learning_phase: LearningPhase | None
    gradient_momentum: float | None  # cosine of the update with the negative gradient
    learning_velocity: float | None  # loss decrease per step
    adaptation_rate: float | None  # update norm over weight norm
    plateau_detection: PlateauDetection
    learning_velocity_per_second: float | None = None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class InstabilitySource(Record):
    source_type: InstabilityType
    affected_layers: list[str]
    severity: float  # 0 … 1
    description: str


@record
class StabilityForecast(Record):
    short_term_outlook: StabilityOutlook
    long_term_outlook: StabilityOutlook
    confidence_level: float | None
    recommended_monitoring: list[str]
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class StabilityAssessment(Record):
    overall_stability: float | None
    stability_trend: StabilityTrend | None
    instability_sources: list[InstabilitySource]
    stability_forecast: StabilityForecast
    unavailable: dict[str, str] = field(default_factory=dict[str, str])
