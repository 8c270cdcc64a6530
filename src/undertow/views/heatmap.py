"""Layer × step as a grid of cells: what to draw, whatever it is drawn with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from undertow.schema.layers import Layer, LayerKind
from undertow.schema.quantities import GradientState


class Cell(IntEnum):
    """What a cell says. Later ones win when several steps fall into one cell."""

    NOT_SAMPLED = 0
    FROZEN = 1
    NO_GRADIENT = 2
    ZERO = 3
    VALUE = 4
    NONFINITE = 5


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Cells of (rows × columns); `levels` runs from 0 to 1 on a logarithmic scale from `low` to `high`."""

    labels: tuple[str, ...]
    first_step: int
    last_step: int
    cells: NDArray[np.int8]
    levels: NDArray[np.float32]
    low: float
    high: float

    @property
    def kinds(self) -> set[Cell]:
        return {Cell(int(kind)) for kind in np.unique(self.cells)}


def gradient_heatmap(
    labels: Sequence[str],
    steps: NDArray[np.int64],
    norms: NDArray[np.float32],
    nonfinite: NDArray[np.float32],
    states: NDArray[np.float32],
    columns: int,
) -> Heatmap:
    """Fold (steps × layers) matrices of one run into at most `columns` cells per layer.

    A norm that is NaN may be unmeasured or really not a number: the count of non-finite elements
    tells them apart. Within a cell the largest norm is kept, and the worst news wins.
    """
    kinds = np.full(norms.shape, Cell.NOT_SAMPLED, np.int8)
    kinds[norms == 0] = Cell.ZERO
    kinds[norms > 0] = Cell.VALUE
    kinds[states == GradientState.NONE] = Cell.NO_GRADIENT
    kinds[states == GradientState.FROZEN] = Cell.FROZEN
    kinds[nonfinite > 0] = Cell.NONFINITE
    values = np.where(kinds == Cell.VALUE, norms, np.nan)

    positive = values[np.isfinite(values)]
    low, high = (float(positive.min()), float(positive.max())) if positive.size else (1.0, 1.0)
    middle = (low * high) ** 0.5
    low, high = min(low, middle / 10), max(high, middle * 10)  # never less than two decades

    count = min(columns, len(steps))
    edges = np.linspace(0, len(steps), count + 1).astype(int)
    cells = np.full((len(labels), count), Cell.NOT_SAMPLED, np.int8)
    levels = np.full((len(labels), count), np.nan, np.float32)
    for column, (start, end) in enumerate(pairwise(edges.tolist())):
        cells[:, column] = kinds[start:end].max(0)
        peak = np.fmax.reduce(values[start:end], axis=0)
        levels[:, column] = (np.log(peak) - np.log(low)) / (np.log(high) - np.log(low))
    first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
    return Heatmap(tuple(labels), first, last, cells, levels, low, high)


def rows_to_show(layers: Sequence[Layer], limit: int) -> list[Layer]:
    """Parameters for the rows of a small picture: all if they fit, else no biases and norms, else thinned."""
    shown = [layer for layer in layers if not layer.is_module]
    if len(shown) > limit:
        small = {LayerKind.BIAS, LayerKind.NORM_SCALE, LayerKind.NORM_SHIFT}
        shown = [layer for layer in shown if layer.kind not in small] or shown
    if len(shown) > limit:
        shown = [shown[int(place)] for place in np.linspace(0, len(shown) - 1, limit)]
    return shown
