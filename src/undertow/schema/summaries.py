"""The analyses of a run in a few lines each, as `undertow report --json` has them. docs/json.md defines every field."""

from dataclasses import dataclass, field

from undertow.schema.findings import StepRange
from undertow.schema.seeds.dynamics import ConvergenceTrend, LearningPhase, StabilityOutlook, StabilityTrend
from undertow.schema.seeds.enhanced import OptimizationTarget, UrgencyLevel
from undertow.schema.seeds.history import LayerHealth
from undertow.schema.severity import Health, Severity


@dataclass(frozen=True, slots=True)
class Named:
    """How many there are, and the first few of them."""

    count: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FlowSummary:
    """Where gradient flows, over the steps looked at."""

    steps: StepRange
    layers: int
    edges: int
    loss_to_input_gain: float | None
    overall_flow_efficiency: float | None
    flow_stability: float | None
    weakest_edge: tuple[str, str] | None  # of the strongest path
    bottlenecks: Named
    dead: Named
    vanishing: Named
    exploding: Named
    nonfinite: Named
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Priority:
    target: str
    kind: OptimizationTarget
    urgency: UrgencyLevel
    score: float
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DynamicsSummary:
    """How training goes."""

    steps: StepRange
    layers: int
    health: LayerHealth
    layer_health: dict[str, int]
    convergence_trend: ConvergenceTrend
    loss_slope: float | None
    loss_slope_interval: tuple[float, float] | None
    estimated_steps_to_convergence: int | None
    learning_phase: LearningPhase | None
    learning_velocity: float | None
    adaptation_rate: float | None
    gradient_momentum: float | None
    is_plateau: bool | None
    plateau_duration: int | None
    overall_stability: float | None
    stability_trend: StabilityTrend | None
    short_term_outlook: StabilityOutlook
    long_term_outlook: StabilityOutlook
    priorities: tuple[Priority, ...]
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class SummaryIssue:
    code: str
    name: str
    severity: Severity
    layers: Named
    summary: str


@dataclass(frozen=True, slots=True)
class Moved:
    layer: str
    relative: float


@dataclass(frozen=True, slots=True)
class DriftSummary:
    against: str
    relative: float | None
    cosine: float | None
    median_relative: float | None
    severity: Severity
    moved_most: tuple[Moved, ...]


@dataclass(frozen=True, slots=True)
class WeightsSummary:
    """The weights when last measured, and how far they came."""

    layers: int
    parameter_count: int
    health: Health | None
    mean: float | None
    std: float | None
    minimum: float | None
    maximum: float | None
    zero_fraction: float | None
    nonfinite_count: int
    issues: tuple[SummaryIssue, ...]
    drift: DriftSummary | None
    notes: tuple[str, ...] = ()
