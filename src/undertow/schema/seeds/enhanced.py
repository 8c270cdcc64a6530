"""The enhanced analysis: every layer, the network, its hierarchy, and what to do first."""

from dataclasses import field
from enum import StrEnum

from undertow.schema.seeds.dynamics import ConvergenceIndicators, StabilityAssessment, TrainingDynamics
from undertow.schema.seeds.history import (
    ComparativeAnalysis,
    FlowCharacteristics,
    GradientStatistics,
    LayerHealth,
    LayerHealthMetrics,
)
from undertow.schema.seeds.record import Record, record


class AnalysisDepth(StrEnum):
    BASIC = "Basic"
    STANDARD = "Standard"
    COMPREHENSIVE = "Comprehensive"
    EXPERT = "Expert"


class DistributionType(StrEnum):
    NORMAL = "Normal"
    SKEWED = "Skewed"
    HEAVY_TAILED = "HeavyTailed"
    MULTIMODAL = "Multimodal"
    DEGENERATE = "Degenerate"


class InteractionType(StrEnum):
    COOPERATIVE = "Cooperative"
    COMPETITIVE = "Competitive"
    NEUTRAL = "Neutral"
    DISRUPTIVE = "Disruptive"


class OptimizationDifficulty(StrEnum):
    EASY = "Easy"
    MODERATE = "Moderate"
    DIFFICULT = "Difficult"
    VERY_DIFFICULT = "VeryDifficult"


class InteractionDirection(StrEnum):
    TOP_DOWN = "TopDown"  # the output side leads
    BOTTOM_UP = "BottomUp"  # the input side leads
    BIDIRECTIONAL = "Bidirectional"


class OptimizationTarget(StrEnum):
    INDIVIDUAL_LAYER = "IndividualLayer"
    LAYER_GROUP = "LayerGroup"
    NETWORK_LEVEL = "NetworkLevel"


class UrgencyLevel(StrEnum):
    LOW = "Low"
    MEDIUM = "Medium"
    HIGH = "High"
    CRITICAL = "Critical"


class ActionType(StrEnum):
    PARAMETER_ADJUSTMENT = "ParameterAdjustment"
    ARCHITECTURAL_CHANGE = "ArchitecturalChange"
    OPTIMIZATION_TECHNIQUE = "OptimizationTechnique"
    REGULARIZATION_METHOD = "RegularizationMethod"
    LEARNING_RATE_SCHEDULING = "LearningRateScheduling"


class ImplementationEffort(StrEnum):
    MINIMAL = "Minimal"
    LOW = "Low"
    MODERATE = "Moderate"
    HIGH = "High"
    EXTENSIVE = "Extensive"


class SuggestionType(StrEnum):
    WEIGHT_INITIALIZATION = "WeightInitialization"
    LEARNING_RATE_ADJUSTMENT = "LearningRateAdjustment"
    REGULARIZATION_ADD = "RegularizationAdd"
    ARCHITECTURAL_MODIFICATION = "ArchitecturalModification"
    OPTIMIZATION_ALGORITHM = "OptimizationAlgorithm"
    BATCH_NORMALIZATION = "BatchNormalization"
    DROPOUT_ADJUSTMENT = "DropoutAdjustment"


class ImplementationComplexity(StrEnum):
    SIMPLE = "Simple"
    MODERATE = "Moderate"
    COMPLEX = "Complex"
    REQUIRES_RETRAINING = "RequiresRetraining"


@record
class LayerOptimizationSuggestion(Record):
    """`expected_improvement` is None until a trial has measured it."""

    suggestion_type: SuggestionType
    description: str
    rationale: str
    expected_improvement: float | None
    implementation_complexity: ImplementationComplexity
    side_effects: list[str]
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class LayerGradientDetails(Record):
    layer_name: str
    gradient_statistics: GradientStatistics
    flow_characteristics: FlowCharacteristics
    health_metrics: LayerHealthMetrics
    optimization_suggestions: list[LayerOptimizationSuggestion]
    comparative_analysis: ComparativeAnalysis


@record
class GradientDistribution(Record):
    """Over the mean norms of the layers; the type is judged on their logarithms."""

    mean_gradient_norm: float | None
    gradient_variance: float | None
    gradient_skewness: float | None
    gradient_kurtosis: float | None
    layer_gradient_ratios: dict[str, float | None]
    distribution_type: DistributionType | None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class LayerInteraction(Record):
    """`lag` is how many samples `layer1` leads."""

    layer1: str
    layer2: str
    interaction_strength: float
    interaction_type: InteractionType
    impact_score: float | None
    correlation: float | None = None
    lag: int = 0
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class NetworkLevelAnalysis(Record):
    overall_gradient_health: LayerHealth
    gradient_distribution: GradientDistribution
    layer_interactions: list[LayerInteraction]
    convergence_indicators: ConvergenceIndicators
    training_dynamics: TrainingDynamics
    stability_assessment: StabilityAssessment
    gradient_agreement: float | None = None  # of micro-batches, or of losses with a backward pass each
    conflicting_layers: list[str] = field(default_factory=list[str])
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class GroupCharacteristics(Record):
    average_gradient_norm: float | None
    gradient_synchronization: float | None
    learning_rate_sensitivity: float | None
    optimization_difficulty: OptimizationDifficulty | None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class LayerGroup(Record):
    group_name: str
    layers: list[str]
    group_characteristics: GroupCharacteristics
    internal_coherence: float | None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class HierarchyLevel(Record):
    level_id: int
    level_name: str
    layer_groups: list[str]
    level_importance: float | None
    optimization_impact: float | None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class CrossLevelInteraction(Record):
    from_level: int
    to_level: int
    interaction_strength: float
    interaction_direction: InteractionDirection
    lag: int = 0


@record
class GradientHierarchy(Record):
    layer_groups: list[LayerGroup]
    hierarchy_levels: list[HierarchyLevel]
    cross_level_interactions: list[CrossLevelInteraction]
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class PrioritizedAction(Record):
    """`expected_impact` is None until a trial has measured it."""

    action_name: str
    action_type: ActionType
    expected_impact: float | None
    implementation_effort: ImplementationEffort
    prerequisites: list[str]
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class OptimizationPriority(Record):
    target_name: str
    target_type: OptimizationTarget
    priority_score: float
    urgency_level: UrgencyLevel
    optimization_potential: float | None
    recommended_actions: list[PrioritizedAction]
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class EnhancedLayerGradientAnalysis(Record):
    layer_details: dict[str, LayerGradientDetails]
    network_level_analysis: NetworkLevelAnalysis
    gradient_hierarchy: GradientHierarchy
    optimization_priorities: list[OptimizationPriority]
