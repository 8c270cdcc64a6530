"""Gradient flow through a network: layers, edges, paths, and regions where it fails."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from undertow.schema.reasons import Missing, record_of
from undertow.schema.seeds.record import Record, record, shown_by


class FlowDirection(StrEnum):
    """Where a layer's gradient norm is going."""

    FORWARD = "Forward"  # rising
    BACKWARD = "Backward"  # falling
    OSCILLATING = "Oscillating"
    STAGNANT = "Stagnant"  # no net change


class NodeType(StrEnum):
    SOURCE = "Source"  # nothing feeds it
    SINK = "Sink"  # it feeds nothing
    BOTTLENECK = "Bottleneck"
    AMPLIFIER = "Amplifier"
    NORMAL = "Normal"
    DEAD = "Dead"
    NON_FINITE = "NonFinite"  # its newest gradient is NaN or infinite


class EdgeType(StrEnum):
    STRONG = "Strong"
    WEAK = "Weak"
    INTERMITTENT = "Intermittent"
    BLOCKED = "Blocked"


class VanishingSeverity(StrEnum):
    """Decades below the limit: under one, one, two, three or more."""

    MILD = "Mild"
    MODERATE = "Moderate"
    SEVERE = "Severe"
    CRITICAL = "Critical"


class ExplodingSeverity(StrEnum):
    """Decades above the limit: under one, one, two, three or more (or infinite)."""

    MILD = "Mild"
    MODERATE = "Moderate"
    SEVERE = "Severe"
    CRITICAL = "Critical"


class RecoveryPotential(StrEnum):
    HIGH = "High"
    MEDIUM = "Medium"
    LOW = "Low"
    NONE = "None"


class ColorScheme(StrEnum):
    DEFAULT = "Default"
    HIGH_CONTRAST = "HighContrast"
    COLOR_BLIND = "ColorBlind"
    MONOCHROME = "Monochrome"

    @classmethod
    def _missing_(cls, value: object) -> ColorScheme | None:
        """As on the command line: `colour-blind`, `high-contrast`."""
        word = str(value).replace("-", "").replace("_", "").lower().replace("colour", "color")
        return next((scheme for scheme in cls if scheme.lower() == word), None)


@record
class GradientVisualizationConfig(Record):
    show_temporal_flows: bool = True
    show_critical_paths: bool = True
    show_problem_regions: bool = True
    color_scheme: ColorScheme = ColorScheme.DEFAULT
    temporal_window: int = 50  # samples of a layer that count as recent
    flow_threshold: float = 0.01  # healthy edges with less gain are not listed


@record
class GradientDirection(Record):
    """`consistency_score` is the cosine with the gradient one sample before; `norm_ratio` compares norms only."""

    step: int
    direction_vector: tuple[float, ...] | None
    magnitude: float
    consistency_score: float | None
    norm_ratio: float | None = None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


class GradientDirections(Sequence[GradientDirection]):
    """One `GradientDirection` per sample, made when it is asked for: a long run has millions of them.

    `sketches` are by position; usually there are few.
    """

    __slots__ = ("cosines", "norms", "sketches", "steps")

    def __init__(
        self,
        steps: NDArray[np.int64],
        norms: NDArray[np.float64],
        cosines: NDArray[np.float64] | None = None,
        sketches: Mapping[int, NDArray[np.float64]] | None = None,
    ) -> None:
        self.steps, self.norms, self.cosines, self.sketches = steps, norms, cosines, sketches

    def __len__(self) -> int:
        return len(self.norms)

    @overload
    def __getitem__(self, index: int) -> GradientDirection: ...
    @overload
    def __getitem__(self, index: slice) -> list[GradientDirection]: ...
    def __getitem__(self, index: int | slice) -> GradientDirection | list[GradientDirection]:
        if isinstance(index, slice):
            return [self._make(position) for position in range(*index.indices(len(self)))]
        return self._make(range(len(self))[index])

    def __iter__(self) -> Iterator[GradientDirection]:
        return (self._make(position) for position in range(len(self)))

    def _make(self, position: int) -> GradientDirection:
        cosine = None if self.cosines is None else float(self.cosines[position])
        sketch = None if self.sketches is None else self.sketches.get(position)
        norm = float(self.norms[position])
        before = float(self.norms[position - 1]) if position else 0.0
        return record_of(
            GradientDirection,
            step=int(self.steps[position]),
            direction_vector=_NO_SKETCH if sketch is None else tuple(sketch.tolist()),
            magnitude=norm,
            consistency_score=_NO_COSINE if cosine is None or np.isnan(cosine) else cosine,
            norm_ratio=norm / before if before > 0 and np.isfinite(norm / before) else _NO_RATIO,
        )


_NO_SKETCH = Missing("no sketch of the gradient was given for this sample")
_NO_COSINE = Missing("no cosine with the sample before is known")
_NO_RATIO = Missing("there is no sample before, or its norm is zero or not finite")


@record
class GradientLayerFlow(Record):
    layer_name: str
    gradient_magnitudes: list[float]
    gradient_directions: Sequence[GradientDirection]
    flow_consistency: float | None
    bottleneck_score: float | None
    information_flow_rate: float | None
    nonfinite_count: int = 0
    first_nonfinite_step: int | None = None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class TemporalGradientFlow(Record):
    step: int
    layer_name: str
    gradient_magnitude: float
    flow_direction: FlowDirection | None
    stability_score: float | None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class FlowNode(Record):
    layer_name: str
    node_type: NodeType
    gradient_strength: float | None
    connectivity: int | None
    influence_score: float | None
    gain: float | None = None  # of the edges to the layers it feeds, each as much as its share counts
    flow_share: float | None = None  # of all gradient that travels from the loss to the inputs
    bottleneck_score: float | None = None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class FlowEdge(Record):
    """Points the way data flows. `flow_strength` is the gain: norm of what `to_layer` sends back to `from_layer`, over
    the norm of the gradient that it has itself; `flow_share` what that contributes to the gradient at `from_layer`."""

    from_layer: str
    to_layer: str
    flow_strength: float | None
    flow_consistency: float | None
    edge_type: EdgeType | None
    blocked_share: float | None = None
    flow_share: float | None = None  # over all edges from `from_layer`, and what goes straight to the loss, 1
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class NetworkMetrics(Record):
    overall_flow_efficiency: float | None
    network_connectivity: float | None
    bottleneck_density: float | None
    flow_stability: float | None
    information_propagation_speed: float | None
    loss_to_input_gain: float | None = None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class GradientFlowNetwork(Record):
    nodes: list[FlowNode]
    edges: list[FlowEdge]
    network_metrics: NetworkMetrics


@record
class CriticalGradientPath(Record):
    """Layers in execution order. `total_flow_strength` is the product of the gains along the path, `criticality_score`
    the product of its shares: what it carries of all gradient, negative for a way that works against the others."""

    path_id: str
    layers: list[str]
    path_length: int
    total_flow_strength: float | None
    bottleneck_layers: list[str]
    criticality_score: float
    optimization_potential: float | None
    weakest_edge: tuple[str, str] | None = None
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class RegionExtent(Record):
    start_layer: str
    end_layer: str
    affected_parameters: int | None
    duration_steps: int  # recorded samples in the run of affected samples
    start_step: int | None = None
    end_step: int | None = None
    ongoing: bool = False
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class VanishingRegion(Record):
    region_id: str
    affected_layers: list[str]
    severity_level: VanishingSeverity
    extent: RegionExtent
    mitigation_suggestions: list[str]


@record
class ExplodingRegion(Record):
    region_id: str
    affected_layers: list[str]
    severity_level: ExplodingSeverity
    extent: RegionExtent
    mitigation_suggestions: list[str]


@record
class GradientDeadZone(Record):
    zone_id: str
    affected_layers: list[str]
    dead_duration: int  # samples below the limit, consecutive or not
    recovery_potential: RecoveryPotential
    intervention_required: bool
    current_run: int = 0  # samples since it was last alive
    longest_run: int = 0
    first_step: int | None = None
    ongoing: bool = False
    unit_activity: float | None = None  # share of live units around the layer
    unavailable: dict[str, str] = field(default_factory=dict[str, str])


@record
class NonFiniteLayer(Record):
    layer_name: str
    count: int
    first_step: int


@record
class GradientFlowVisualization(Record):
    layer_flows: dict[str, GradientLayerFlow]
    temporal_flows: list[TemporalGradientFlow]
    flow_network: GradientFlowNetwork
    critical_paths: list[CriticalGradientPath]
    vanishing_regions: list[VanishingRegion]
    exploding_regions: list[ExplodingRegion]
    dead_zones: list[GradientDeadZone]
    visualization_config: GradientVisualizationConfig
    nonfinite_layers: list[NonFiniteLayer] = field(default_factory=list[NonFiniteLayer])
    unavailable: dict[str, str] = field(default_factory=dict[str, str])

    def draw(self, path: str | os.PathLike[str], **options: Any) -> None:
        """The flow as a picture, by the file's ending: .svg, .png, .html, or .gif, .webp and .mp4, which move.

        Colours are those of `visualization_config`; `options` are those of `undertow export`:
        theme, size, layers, steps.
        """
        shown_by("draw_flow")(self, Path(path), options)
