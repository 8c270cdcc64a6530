"""Singular values of a weight matrix: largest, stable rank, condition, and how heavy the tail of their squares is.

Up to `EXACT_UP_TO` on the shorter side all singular values are computed, from the Gram matrix. Its rounding is relative
to the largest square: in float64, values down to a ten-millionth of the largest are told from zero. Above that size the
spectrum comes from a Krylov space.
"""

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.gram import gram
from undertow.analyze.heavy_tail import FEWEST_FOR_TAIL, heavy_tail
from undertow.analyze.krylov import POWERS, WIDTH, Nodes, spectral_nodes
from undertow.checkpoints.elements import Elements
from undertow.schema.checkpoints import Spectrum

Floats = NDArray[np.float64]

EXACT_UP_TO = 512  # from here on the Krylov space is the cheaper one
# From a Gram matrix in float32, squares are right to about 1e-6 of the largest one: the smallest one to a hundredth,
# where it is not below `_CLOSE` of that. Larger ones are far better. In matrices that are nearly square it is below.
# numpy's eigenvalues are those of LAPACK in float64. Its float32 routines, called past numpy, took 0.9 of the time of
# all that is said of a matrix of side 256 or 512: not worth a library loaded by hand.
_TALL = 2
_CLOSE = 1e-4


def spectrum(elements: Elements, norm: float, reach: float, exact_up_to: int = EXACT_UP_TO) -> Spectrum | None:
    """`norm` is Frobenius', `reach` the largest absolute value. None for a matrix of zeros."""
    rows, columns = elements.matrix_shape
    total = min(rows, columns)
    if total == 0 or reach <= 0 or norm <= 0:
        return None
    exact = total <= max(exact_up_to, WIDTH * POWERS)
    # Squares of very small or large weights would leave the range of float32.
    unit = 1.0 if 1e-9 < reach < 1e9 else reach
    nodes = _every_node(elements, unit) if exact else spectral_nodes(elements, unit)
    squares = nodes.squares
    largest = float(np.sqrt(squares[0])) * unit
    missing: dict[str, str] = {}
    condition = None
    if not exact:
        missing["condition"] = f"of {total:,} singular values only the largest were computed"
    elif squares[-1] <= squares[0] * np.finfo(np.float64).eps * max(rows, columns):
        missing["condition"] = "the smallest singular value is zero within rounding"
    else:
        condition = float(np.sqrt(squares[0] / squares[-1]))
    tail = heavy_tail(squares, nodes.counts)
    if tail is None:
        missing["tail_exponent"] = f"a tail needs at least {FEWEST_FOR_TAIL} different singular values"
    return Spectrum(
        method="exact" if exact else "randomised",
        values_known=nodes.known,
        values_total=total,
        spectral_norm=largest,
        stable_rank=(norm / largest) ** 2,
        condition=condition,
        tail_exponent=None if tail is None else tail.exponent,
        tail_values=None if tail is None else tail.values,
        tail_start=None if tail is None else sqrt(tail.start) * unit,
        tail_distance=None if tail is None else tail.distance,
        missing=missing,
    )


def _every_node(elements: Elements, unit: float) -> Nodes:
    """The eigenvalues of the smaller Gram matrix of x / unit."""
    short, long = sorted(elements.matrix_shape)
    squares = np.zeros(short)
    if elements.dtype != "float64" and long >= _TALL * short:
        squares = eigenvalues(gram(elements, unit, np.float32))
    if squares[-1] <= _CLOSE * squares[0]:
        squares = eigenvalues(gram(elements, unit, np.float64))
    return Nodes(squares, np.ones(short), short)


def eigenvalues(symmetric: NDArray[Any]) -> Floats:
    """Of a Gram matrix, falling, none below zero. The matrix is used up."""
    largest = float(symmetric.diagonal().max(initial=0.0))
    if largest <= 0.0:
        return np.zeros(len(symmetric))
    symmetric /= largest  # squares of huge weights would leave the range of numbers
    return np.maximum(np.linalg.eigvalsh(symmetric)[::-1].astype(np.float64), 0.0) * largest
