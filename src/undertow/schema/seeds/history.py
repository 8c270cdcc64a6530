"""What one layer's gradient did over the steps, and the small records around it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from undertow.schema.seeds.arrays import InputError, as_array, as_series, as_steps
from undertow.schema.seeds.record import Record, record


class LayerHealth(StrEnum):
    HEALTHY = "Healthy"
    WARNING = "Warning"
    CRITICAL = "Critical"
    UNKNOWN = "Unknown"  # fewer than three finite samples


@record
class GradientFlow(Record):
    """One layer at one step. What was not measured is None."""

    layer_name: str
    step: int
    gradient_norm: float
    gradient_mean: float | None = None
    gradient_std: float | None = None
    gradient_max: float | None = None
    gradient_min: float | None = None
    dead_neurons_ratio: float | None = None
    active_neurons_ratio: float | None = None
    timestamp: float | None = None


@dataclass(slots=True, eq=False)
class GradientHistory(Record):
    """Parallel ring buffers, oldest first; the oldest entry of each falls out when `max_history_length` is reached.

    `gradient_cosines` (with the gradient one sample before) and `gradient_sketches` (short linear images of the
    gradient) are optional and may stay empty: without them nothing is said about directions.
    """

    layer_name: str
    max_history_length: int = 1000
    parameter_count: int | None = None
    gradient_norms: deque[float] = field(default_factory=deque[float])
    gradient_means: deque[float | None] = field(default_factory=deque[float | None])
    gradient_stds: deque[float | None] = field(default_factory=deque[float | None])
    step_numbers: deque[int] = field(default_factory=deque[int])
    gradient_cosines: deque[float | None] = field(default_factory=deque[float | None])
    gradient_sketches: deque[tuple[float, ...] | None] = field(default_factory=deque[tuple[float, ...] | None])

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # it grows

    def __post_init__(self) -> None:
        length = self.max_history_length
        if length < 1:
            raise InputError(f"layer {self.layer_name!r}: max_history_length is {length}, expected 1 or more")
        for name in _BUFFERS:
            setattr(self, name, deque(getattr(self, name), maxlen=length))

    @classmethod
    def new(cls, layer_name: str, max_history_length: int = 1000) -> GradientHistory:
        return cls(layer_name, max_history_length)

    @classmethod
    def from_norms(
        cls,
        name: str,
        norms: Any,
        steps: Any = None,
        parameter_count: int | None = None,
        *,
        means: Any = None,
        stds: Any = None,
        cosines: Any = None,
        sketches: Any = None,
    ) -> GradientHistory:
        """A history of given norms. Unordered steps are put in order; repeated ones are refused."""
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"a layer is called {name!r}, expected a text")
        values = as_series(norms, name)
        if (values < 0).any():
            raise InputError(f"layer {name!r}: a gradient norm is negative ({float(values[values < 0][0])})")
        if parameter_count is not None and parameter_count < 0:
            raise InputError(f"layer {name!r}: parameter_count is {parameter_count}")
        numbers = as_steps(steps, name, len(values))
        order = np.argsort(numbers, kind="stable")
        history = cls(name, max(1, len(values)), parameter_count)
        history.gradient_norms.extend(values[order].tolist())
        history.step_numbers.extend(numbers[order].tolist())
        history.gradient_means.extend(_beside(means, name, order))
        history.gradient_stds.extend(_beside(stds, name, order))
        if cosines is not None:
            history.gradient_cosines.extend(_beside(cosines, name, order))
        if sketches is not None:
            history.gradient_sketches.extend(_sketches(sketches, name, order))
        return history

    def add_gradient_flow(
        self, flow: GradientFlow, *, cosine: float | None = None, sketch: Sequence[float] | None = None
    ) -> None:
        self.gradient_norms.append(flow.gradient_norm)
        self.gradient_means.append(flow.gradient_mean)
        self.gradient_stds.append(flow.gradient_std)
        self.step_numbers.append(flow.step)
        if cosine is not None or self.gradient_cosines:
            _append(self.gradient_cosines, cosine, len(self))
        if sketch is not None or self.gradient_sketches:
            _append(self.gradient_sketches, None if sketch is None else tuple(sketch), len(self))

    def get_trend_slope(self) -> float | None:
        """Least-squares slope of the norms against 0, 1, 2 …; None below three samples or with non-finite ones."""
        count = len(self.gradient_norms)
        norms = np.array(self.gradient_norms, dtype=np.float64)
        if count < 3 or not np.isfinite(norms).all():
            return None
        index = np.arange(count, dtype=np.float64)
        above = count * (index @ norms) - index.sum() * norms.sum()
        return float(above / (count * (index @ index) - index.sum() ** 2))

    def __len__(self) -> int:
        return len(self.gradient_norms)


_BUFFERS = (
    "gradient_norms",
    "gradient_means",
    "gradient_stds",
    "step_numbers",
    "gradient_cosines",
    "gradient_sketches",
)


def _append(buffer: deque[Any], value: Any, length: int) -> None:
    """Add to an optional buffer; samples before the first value count as unknown."""
    if not buffer:
        buffer.extend([None] * (length - 1))
    buffer.append(value)


def _beside(values: Any, name: str, order: np.ndarray[Any, np.dtype[np.intp]]) -> list[float | None]:
    if values is None:
        return [None] * len(order)
    series = as_series(values, name)
    if len(series) != len(order):
        raise InputError(f"layer {name!r}: {len(order)} norms but {len(series)} values beside them")
    return [None if np.isnan(value) else float(value) for value in series[order]]


def _sketches(values: Any, name: str, order: np.ndarray[Any, np.dtype[np.intp]]) -> list[tuple[float, ...] | None]:
    table = as_array(values, name)
    if table.ndim != 2 or len(table) != len(order):
        raise InputError(f"layer {name!r}: sketches have shape {table.shape}, expected ({len(order)}, width)")
    return [tuple(row) for row in table[order].tolist()]


@record
class GradientAlert(Record):
    """Base of the alerts; each kind carries what it saw and the limit. `code` is Undertow's word for the same."""

    layer_name: str

    @property
    def code(self) -> str:
        return ALERT_CODES[type(self).__name__][0]


@record
class VanishingGradients(GradientAlert):
    norm: float
    threshold: float


@record
class ExplodingGradients(GradientAlert):
    norm: float
    threshold: float


@record
class DeadNeurons(GradientAlert):
    ratio: float
    threshold: float


@record
class GradientOscillation(GradientAlert):
    variance: float


@record
class NoGradientFlow(GradientAlert):
    steps_without_gradient: int


# The codes of a diagnosis that are the same complaint, the usual one first.
ALERT_CODES = {
    "VanishingGradients": ("GRD001",),
    "ExplodingGradients": ("GRD002", "NUM001"),
    "DeadNeurons": ("ACT001",),
    "GradientOscillation": ("GRD005",),
    "NoGradientFlow": ("GRD003", "GRD004"),
}


@record
class GradientDebugConfig(Record):
    """Limits of the alerts above. All of them are read."""

    vanishing_threshold: float = 1e-7
    exploding_threshold: float = 10.0
    dead_neuron_threshold: float = 0.1
    oscillation_variance_threshold: float = 100.0
    no_gradient_steps_threshold: int = 10
    dead_element_magnitude: float = 1e-8


@record
class GradientStatistics(Record):
    """Of the finite norms of one layer. Percentiles interpolate linearly between order statistics."""

    mean: float | None
    std: float | None
    median: float | None
    percentile_95: float | None
    percentile_5: float | None
    samples: int
    variance: float | None
    skewness: float | None
    kurtosis: float | None
    nonfinite_count: int = 0
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class FlowCharacteristics(Record):
    consistency_score: float | None
    smoothness_index: float | None
    trend_strength: float | None
    oscillation_frequency: float | None
    stability_measure: float | None
    oscillation_z: float | None = None  # turning points against independent noise, in standard deviations
    is_oscillating: bool | None = None
    direction_cosine: float | None = None  # mean of successive gradients, where directions are known
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class LayerHealthMetrics(Record):
    overall_health: LayerHealth
    gradient_stability: float | None
    information_flow_rate: float | None
    neuron_activity_ratio: float | None
    convergence_indicator: float | None
    risk_factors: list[str]
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class ComparativeAnalysis(Record):
    relative_performance: float | None
    rank_among_layers: int | None
    similar_layers: list[str]
    performance_gap: float | None
    optimization_potential: float | None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])
