"""The Gram matrix of the shorter side of a weight matrix, and the pieces it is made from."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.checkpoints.elements import Elements

# Elements in a piece. A piece that is no copy costs no memory, and large products run a third faster than small ones.
_COPY = 1 << 20
_VIEW = 1 << 22
_STRETCH = 4096  # products added up in one precision; their sums are added in float64


def slabs(elements: Elements, unit: float, dtype: type[np.floating[Any]]) -> Iterator[NDArray[Any]]:
    """The matrix in pieces, divided by unit, standing upright: the shorter side of the matrix is the second axis of
    every piece. No copy of what already has the type."""
    rows, columns = elements.matrix_shape
    matrix = elements.matrix
    copied = unit != 1.0 or elements.dtype != np.dtype(dtype).name
    step = max(1, (_COPY if copied else _VIEW) // min(rows, columns))
    for start in range(0, max(rows, columns), step):
        stored = matrix[start : start + step] if rows >= columns else matrix[:, start : start + step].T
        values = elements.widen(stored)
        if unit != 1.0:
            values = np.divide(values, unit, dtype=np.result_type(values, dtype))
        yield values.astype(dtype, copy=False)


def gram(elements: Elements, unit: float, dtype: type[np.floating[Any]]) -> NDArray[Any]:
    """Of x / unit: products of stretches in `dtype`, added up in float64 if there are several."""
    total: NDArray[Any] | None = None
    for slab in slabs(elements, unit, dtype):
        for start in range(0, len(slab), _STRETCH):
            part = slab[start : start + _STRETCH]
            product = part.T @ part
            total = product if total is None else np.add(total, product, dtype=np.float64)
    side = min(elements.matrix_shape)
    return np.zeros((side, side)) if total is None else total
