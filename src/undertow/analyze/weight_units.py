"""Rows and columns of a weight: units that are dead, units that stand out, and zeros that form a pattern."""

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.weight_distribution import Distribution
from undertow.checkpoints.elements import Elements
from undertow.schema.checkpoints import OutlierRow, Units

# A unit whose norm is this much below the median unit's carries nothing that float32 would notice beside the others.
DEAD_BELOW = 1e-7
# In median absolute deviations of the logarithm of the norms, beside at least twice the median.
ROW_LIMIT = 10.0
_NAMED = 8
_ROWS_KEPT = 5


def units(elements: Elements, distribution: Distribution) -> Units:
    rows, columns = elements.matrix_shape
    dead_rows, dead_columns = _dead(distribution.row_squares), _dead(distribution.column_squares)
    return Units(
        rows=rows,
        columns=columns,
        dead_rows=len(dead_rows),
        dead_columns=len(dead_columns),
        first_dead_rows=tuple(dead_rows[:_NAMED].tolist()),
        first_dead_columns=tuple(dead_columns[:_NAMED].tolist()),
        sparsity=_pattern(elements, distribution, len(dead_rows), len(dead_columns)),
    )


def outlier_rows(distribution: Distribution) -> tuple[OutlierRow, ...]:
    """The few rows whose norm lies far above what the spread of all rows explains."""
    norms = np.sqrt(distribution.row_squares)
    alive = norms[norms > 0]
    if len(alive) < 8:
        return ()
    middle = float(np.median(alive))
    spread = float(np.median(np.abs(np.log(alive / middle)))) / 0.6745
    limit = middle * max(2.0, np.exp(min(ROW_LIMIT * spread, 700.0)))
    order = np.argsort(norms)[::-1][:_ROWS_KEPT]
    return tuple(
        OutlierRow(int(row), float(norms[row] * distribution.reach), float(norms[row] / middle))
        for row in order
        if norms[row] > limit
    )


def _dead(squares: NDArray[np.float64]) -> NDArray[np.intp]:
    alive = squares[squares > 0]
    if len(alive) == 0:
        return np.arange(len(squares))
    return np.flatnonzero(squares <= np.median(alive) * DEAD_BELOW**2)


def _pattern(elements: Elements, distribution: Distribution, dead_rows: int, dead_columns: int) -> str:
    """What zeros look like: pruning leaves them scattered, in 2 of 4, or as whole units."""
    moments = distribution.moments
    rows, columns = elements.matrix_shape
    if moments.zero_count == moments.count:
        return "all zero"
    if moments.zero_fraction < 0.05:
        return "none"
    if moments.zero_fraction >= 0.5 and columns % 4 == 0 and _two_of_four(elements):
        return "2:4"
    in_rows, in_columns = dead_rows * columns, dead_columns * rows
    if max(in_rows, in_columns) >= 0.9 * moments.zero_count:
        return "rows" if in_rows >= in_columns else "columns"
    return "scattered"


def _two_of_four(elements: Elements) -> bool:
    """Whether every group of four neighbours in a row has at least two zeros."""
    for block in elements.blocks():
        groups = block.values.reshape(-1, 4) if block.values.size % 4 == 0 else block.values.reshape(-1)[:0, None]
        if groups.size == 0 or np.count_nonzero(groups, axis=1).max() > 2:
            return False
    return True
