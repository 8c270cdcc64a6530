"""Frames of the gradient animator and what they add up to."""

from dataclasses import dataclass, field
from enum import StrEnum


class GradientPresence(StrEnum):
    """What a layer's gradient was in a frame, before any statistic."""

    PRESENT = "present"
    NONFINITE = "non-finite"
    EMPTY = "empty"  # a tensor without elements
    MISSING = "missing"  # None: no gradient arrived


@dataclass(frozen=True, slots=True)
class LayerGradientInfo:
    """`mean_abs_grad` and `grad_norm` are NaN when any element is non-finite; `max_abs_grad` leaves NaN out."""

    name: str
    mean_abs_grad: float
    max_abs_grad: float
    grad_norm: float
    is_vanishing: bool
    is_exploding: bool
    flow_intensity: float
    nonfinite_count: int = 0
    presence: GradientPresence = GradientPresence.PRESENT


@dataclass(frozen=True, slots=True)
class GradientFrame:
    step: int
    layers: list[LayerGradientInfo]


class GradientHealth(StrEnum):
    HEALTHY = "Healthy"
    MINOR_ISSUES = "MinorIssues"
    PROBLEMS_DETECTED = "ProblemsDetected"
    CRITICAL = "Critical"


class GradientIssue(StrEnum):
    VANISHING = "vanishing"
    EXPLODING = "exploding"
    NONFINITE = "non-finite"
    EMPTY = "empty"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class LayerIssueCount:
    """How often a layer had one issue, over every frame ever recorded, also those the window has dropped."""

    layer_name: str
    issue: GradientIssue
    frames: int
    share: float  # of the frames in which the layer appeared
    longest_run: int
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class GradientFlowSummary:
    """Lists of vanishing and exploding layers and the health cover the retained frames; the rest, all of them."""

    total_steps: int
    layers_with_vanishing_grads: list[str]
    layers_with_exploding_grads: list[str]
    overall_health: GradientHealth
    recommendations: list[str]
    layers_with_nonfinite_grads: list[str] = field(default_factory=list[str])
    layers_without_grads: list[str] = field(default_factory=list[str])  # empty or missing
    frames_recorded: int = 0
    frames_retained: int = 0
    first_step: int | None = None
    last_step: int | None = None
    issue_counts: list[LayerIssueCount] = field(default_factory=list[LayerIssueCount])
