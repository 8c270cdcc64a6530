"""Gradient flow of plain histories."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from undertow.analyze.gradient_shares import given_shares
from undertow.analyze.series import Floats, LayerSeries, named_histories, successive_cosines
from undertow.analyze.topology import Topology, topology_of
from undertow.components.gradient_flow import gradient_flow
from undertow.schema.seeds.arrays import InputError, legal
from undertow.schema.seeds.flow_records import ColorScheme, GradientFlowVisualization, GradientVisualizationConfig
from undertow.schema.seeds.history import GradientHistory

NOT_FROM_NORMS = "norms do not tell what each of several users of a layer sends back; give `shares`, or take a run"
Histories = Mapping[str, Any] | Iterable[GradientHistory]


class GradientFlowVisualizer:
    """Holds only the configuration: a `GradientVisualizationConfig`, or a mapping of some of its fields."""

    def __init__(self, config: GradientVisualizationConfig | Mapping[str, Any] | None = None) -> None:
        self.config = checked_config(config)

    def generate_visualization(
        self,
        histories: Histories,
        current_step: int | None = None,
        graph: Any = None,
        *,
        unit_activity: Mapping[str, float] | None = None,
        shares: Mapping[tuple[str, str], float] | None = None,
    ) -> GradientFlowVisualization:
        """Layers, edges, paths and regions of the histories.

        `current_step` decides only what is still ongoing. `graph` says which layer feeds which: pairs (from, to), a
        mapping of each layer to those it feeds, a networkx graph, or the graph of a run. Without it there are nodes,
        but no edges and no paths. `unit_activity` is the share of live units per layer: whether a dead gradient can
        come back. `shares` are those of all edges from a layer that feeds several others, by (from, to): norms do not
        tell them, and without them paths through such a layer are not known.
        """
        table = named_histories(histories)
        series = LayerSeries.from_histories(table)
        topology = None if graph is None else topology_of(graph, series.names)
        return gradient_flow(
            series,
            self.config,
            current_step=current_step,
            topology=topology,
            shares=None if topology is None or shares is None else given_shares(topology, _by_place(topology, shares)),
            unmeasured=NOT_FROM_NORMS,
            cosines=successive_cosines(table, series),
            sketches=_sketches(table),
            unit_activity=unit_activity,
        )

    def create_visualization(self, histories: Histories) -> GradientFlowVisualization:
        """The same, up to the last recorded step."""
        return self.generate_visualization(histories)


def _by_place(topology: Topology, shares: Mapping[tuple[str, str], float]) -> dict[tuple[int, int], float]:
    known = {(topology.names[start], topology.names[end]): (start, end) for start, end in topology.edges}
    for edge, share in shares.items():
        if edge not in known or not math.isfinite(share):
            what = "is no edge of the graph" if edge not in known else f"is {share}"
            raise InputError(f"the share of {edge} {what}", way_out="Give finite shares by (from, to)")
    return {known[edge]: float(share) for edge, share in shares.items()}


def _sketches(table: Mapping[str, GradientHistory]) -> dict[str, dict[int, Floats]]:
    return {
        name: {
            place: np.array(sketch, dtype=np.float64)
            for place, sketch in enumerate(history.gradient_sketches)
            if sketch is not None
        }
        for name, history in table.items()
        if history.gradient_sketches
    }


def checked_config(given: GradientVisualizationConfig | Mapping[str, Any] | None) -> GradientVisualizationConfig:
    """With every value in its range; colours may be spelt as on the command line."""
    config = GradientVisualizationConfig.given(given)
    if config.temporal_window < 1:
        raise InputError(f"temporal_window is {config.temporal_window}, expected 1 or more")
    if not config.flow_threshold >= 0:
        raise InputError(f"flow_threshold is {config.flow_threshold}, expected 0 or more")
    return replace(config, color_scheme=legal(ColorScheme, config.color_scheme, "color_scheme"))
