"""Directions of successive gradients, from what histories were given."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from undertow.analyze.series import Floats, LayerSeries
from undertow.schema.seeds.history import GradientHistory


def successive_cosines(table: Mapping[str, GradientHistory], series: LayerSeries) -> Floats | None:
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
