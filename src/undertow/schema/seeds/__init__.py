"""The records and enums of the five components that work on plain arrays."""

# ruff: noqa: F403, F405

from undertow.schema.seeds.animation import *
from undertow.schema.seeds.arrays import *
from undertow.schema.seeds.dynamics import *
from undertow.schema.seeds.enhanced import *
from undertow.schema.seeds.flow_records import *
from undertow.schema.seeds.history import *
from undertow.schema.seeds.weight_records import *

__all__ = [
    "ActionType", "AnalysisDepth", "ColorScheme", "ComparativeAnalysis", "ConvergenceIndicators",
    "ConvergenceTrend", "CriticalGradientPath", "CrossLevelInteraction", "DeadNeurons", "DistributionHealth",
    "DistributionHealthStatus", "DistributionType", "EdgeType", "EnhancedLayerGradientAnalysis",
    "ExplodingGradients", "ExplodingLayer", "ExplodingRegion", "ExplodingSeverity", "ExplosionSeverity",
    "FlowCharacteristics", "FlowDirection", "FlowEdge", "FlowNode", "GradientAlert", "GradientDeadZone",
    "GradientDebugConfig", "GradientDirection", "GradientDirections", "GradientDistribution",
    "GradientExplosionAnalysis", "GradientFlow", "GradientFlowNetwork", "GradientFlowSummary",
    "GradientFlowVisualization", "GradientFrame", "GradientHealth", "GradientHierarchy", "GradientHistory",
    "GradientIssue", "GradientLayerFlow", "GradientOscillation", "GradientPresence", "GradientStatistics",
    "GradientVisualizationConfig", "GroupCharacteristics", "HierarchyLevel", "ImplementationComplexity",
    "ImplementationEffort", "InputError", "InstabilitySource", "InstabilityType", "InteractionDirection",
    "InteractionType", "LayerGradientDetails", "LayerGradientInfo", "LayerGroup", "LayerHealth",
    "LayerHealthMetrics", "LayerInteraction", "LayerIssueCount", "LayerOptimizationSuggestion",
    "LayerWeightAnalysis", "LearningPhase", "NetworkLevelAnalysis", "NetworkMetrics", "NoGradientFlow", "NodeType",
    "NonFiniteLayer", "OptimizationDifficulty", "OptimizationPriority", "OptimizationTarget", "OutlierCount",
    "OutlierSeverity", "PlateauDetection", "PlateauSeverity", "PrioritizedAction", "RecoveryPotential",
    "RegionExtent", "StabilityAssessment", "StabilityForecast", "StabilityOutlook", "StabilityTrend",
    "SuggestionType", "TemporalGradientFlow", "TrainingDynamics", "UrgencyLevel", "VanishingGradients",
    "VanishingRegion", "VanishingSeverity", "WeightDistributionAnalysis", "WeightDriftAnalysis",
    "WeightDriftSeverity", "WeightHealth", "WeightIssue", "WeightOutlier", "WeightStatistics",
]  # fmt: skip
