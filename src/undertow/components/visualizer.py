"""Gradient flow of plain histories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from undertow.analyze.flow import gradient_flow
from undertow.analyze.series import Floats, LayerSeries, named_histories
from undertow.analyze.topology import topology_of
from undertow.schema.seeds.arrays import InputError
from undertow.schema.seeds.flow import GradientFlowVisualization, GradientVisualizationConfig
from undertow.schema.seeds.history import GradientHistory

Histories = Mapping[str, Any] | Iterable[GradientHistory]


class GradientFlowVisualizer:
    """Holds only the configuration."""

    def __init__(self, config: GradientVisualizationConfig | None = None) -> None:
        self.config = config or GradientVisualizationConfig()
        if self.config.temporal_window < 1:
            raise InputError(f"temporal_window is {self.config.temporal_window}, expected 1 or more")

    def generate_visualization(
        self, histories: Histories, current_step: int | None = None, graph: Any = None
    ) -> GradientFlowVisualization:
        """Layers, edges, paths and regions of the histories.

        `current_step` decides only what is still ongoing. `graph` says which layer feeds which: pairs (from, to), a
        mapping of each layer to those it feeds, a networkx graph, or the graph of a run. Without it there are nodes,
        but no edges and no paths.
        """
        table = named_histories(histories)
        series = LayerSeries.from_histories(table)
        return gradient_flow(
            series,
            self.config,
            current_step=current_step,
            topology=None if graph is None else topology_of(graph, series.names),
            cosines=_cosines(table, series),
            sketches=_sketches(table),
        )

    def create_visualization(self, histories: Histories) -> GradientFlowVisualization:
        """The same, up to the last recorded step."""
        return self.generate_visualization(histories)


def _cosines(table: Mapping[str, GradientHistory], series: LayerSeries) -> Floats | None:
    """(steps × layers), from the cosines given or else from successive sketches; None when there are neither."""
    columns: dict[str, Floats] = {}
    for name, history in table.items():
        if not (history.gradient_cosines or history.gradient_sketches):
            continue
        given = np.array([np.nan if c is None else c for c in history.gradient_cosines], dtype=np.float64)
        if np.isnan(given).all() and any(sketch is not None for sketch in history.gradient_sketches):
            given = _successive(history)
        if len(given) == len(history) and not np.isnan(given).all():
            columns[name] = given
    if not columns:
        return None
    cosines = np.full(series.values.shape, np.nan)
    for name, column in columns.items():
        layer = series.index[name]
        cosines[series.recorded[:, layer], layer] = column
    return cosines


def _successive(history: GradientHistory) -> Floats:
    cosines = np.full(len(history), np.nan)
    sketches = list(history.gradient_sketches)
    for place in range(1, len(sketches)):
        before, after = sketches[place - 1], sketches[place]
        if before is not None and after is not None and len(before) == len(after):
            size = float(np.linalg.norm(before) * np.linalg.norm(after))
            cosines[place] = float(np.dot(before, after)) / size if size > 0 else np.nan
    return cosines


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
