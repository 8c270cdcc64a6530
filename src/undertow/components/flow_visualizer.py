"""Gradient flow of plain histories."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from undertow.analyze.series import Floats, LayerSeries, named_histories, successive_cosines
from undertow.analyze.topology import topology_of
from undertow.components.gradient_flow import gradient_flow
from undertow.schema.seeds.arrays import InputError
from undertow.schema.seeds.flow_records import ColorScheme, GradientFlowVisualization, GradientVisualizationConfig
from undertow.schema.seeds.history import GradientHistory

Histories = Mapping[str, Any] | Iterable[GradientHistory]


class GradientFlowVisualizer:
    """Holds only the configuration."""

    def __init__(self, config: GradientVisualizationConfig | None = None) -> None:
        self.config = config or GradientVisualizationConfig()
        if self.config.temporal_window < 1:
            raise InputError(f"temporal_window is {self.config.temporal_window}, expected 1 or more")
        if not self.config.flow_threshold >= 0:
            raise InputError(f"flow_threshold is {self.config.flow_threshold}, expected 0 or more")
        if self.config.color_scheme not in list(ColorScheme):
            legal = ", ".join(ColorScheme)
            raise InputError(f"color_scheme is {self.config.color_scheme!r}", way_out=f"Legal values: {legal}")

    def generate_visualization(
        self,
        histories: Histories,
        current_step: int | None = None,
        graph: Any = None,
        *,
        unit_activity: Mapping[str, float] | None = None,
    ) -> GradientFlowVisualization:
        """Layers, edges, paths and regions of the histories.

        `current_step` decides only what is still ongoing. `graph` says which layer feeds which: pairs (from, to), a
        mapping of each layer to those it feeds, a networkx graph, or the graph of a run. Without it there are nodes,
        but no edges and no paths. `unit_activity` is the share of live units per layer: whether a dead gradient can
        come back.
        """
        table = named_histories(histories)
        series = LayerSeries.from_histories(table)
        return gradient_flow(
            series,
            self.config,
            current_step=current_step,
            topology=None if graph is None else topology_of(graph, series.names),
            cosines=successive_cosines(table, series),
            sketches=_sketches(table),
            unit_activity=unit_activity,
        )

    def create_visualization(self, histories: Histories) -> GradientFlowVisualization:
        """The same, up to the last recorded step."""
        return self.generate_visualization(histories)


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
