"""Singular values of a weight matrix: largest, stable rank, condition, and how heavy the tail of their squares is.

Up to `EXACT_UP_TO` on the shorter side all singular values are computed, from the Gram matrix in float64. Above it a
randomised block Krylov method gives the largest ones, reading the matrix `POWERS + 1` times and holding no copy of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from undertow.checkpoints.elements import Elements
from undertow.schema.checkpoints import Spectrum

Floats = NDArray[np.float64]

EXACT_UP_TO = 1024
WIDTH = 64
POWERS = 4
FEWEST_FOR_TAIL = 50
_BLOCK = 1 << 20
_SEED = 0x5EED


def spectrum(elements: Elements, norm: float, reach: float, exact_up_to: int = EXACT_UP_TO) -> Spectrum | None:
    """`norm` is Frobenius', `reach` the largest absolute value. None for a matrix of zeros."""
    rows, columns = elements.matrix_shape
    total = min(rows, columns)
    if total == 0 or reach <= 0 or norm <= 0:
        return None
    exact = total <= exact_up_to
    # Squares of very small or large weights would leave the range of float32.
    unit = 1.0 if 1e-9 < reach < 1e9 else reach
    squares = _all_squares(elements, unit) if exact else _largest_squares(elements, unit)
    values = np.sqrt(squares) * unit
    missing: dict[str, str] = {}
    condition = None
    if not exact:
        missing["condition"] = f"only the {len(values)} largest of {total:,} singular values were computed"
    elif squares[-1] <= squares[0] * np.finfo(np.float64).eps * max(rows, columns):
        missing["condition"] = "the smallest singular value is zero within rounding"
    else:
        condition = float(values[0] / values[-1])
    largest = float(values[0])
    tail = _tail(squares)
    if tail is None:
        missing["tail_exponent"] = f"a tail needs at least {FEWEST_FOR_TAIL} different singular values"
    return Spectrum(
        method="exact" if exact else "randomised",
        values_known=len(values),
        values_total=total,
        spectral_norm=largest,
        stable_rank=(norm / largest) ** 2,
        condition=condition,
        tail_exponent=None if tail is None else tail[0],
        tail_values=None if tail is None else tail[1],
        tail_start=None if tail is None else sqrt(tail[2]) * unit,
        tail_distance=None if tail is None else tail[3],
        missing=missing,
    )


def _all_squares(elements: Elements, unit: float) -> Floats:
    """The eigenvalues of the smaller Gram matrix of x / unit, falling."""
    rows, columns = elements.matrix_shape
    if rows < columns:
        # The short side is the rows: the products of all pairs of rows, piece by piece of the columns.
        gram = np.zeros((rows, rows))
        step = max(1, _BLOCK // rows)
        for column in range(0, columns, step):
            piece = elements.widen(elements.matrix[:, column : column + step]).astype(np.float64)
            piece /= unit
            gram += piece @ piece.T
    else:
        gram = np.zeros((columns, columns))
        for block in elements.blocks(max(columns, _BLOCK)):
            piece = block.values.astype(np.float64)
            piece /= unit
            gram += piece.T @ piece
    return np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)


def _largest_squares(elements: Elements, unit: float) -> Floats:
    """Ritz values of the Gram matrix of the shorter side on a Krylov space from a random start, the largest WIDTH."""
    rows, columns = elements.matrix_shape
    side = min(rows, columns)
    generator = np.random.default_rng(_SEED)  # our own stream, always the same: results repeat
    block = generator.standard_normal((side, WIDTH)).astype(np.float32)
    basis = np.zeros((side, 0), np.float32)
    for power in range(POWERS):
        block -= basis @ (basis.T @ block)
        block -= basis @ (basis.T @ block)  # twice is enough to stay orthogonal
        block = np.linalg.qr(block)[0]
        basis = np.concatenate([basis, block], axis=1)
        if power + 1 < POWERS:
            block = _gram_times(elements, unit, block)
    projected = _projected(elements, unit, basis)
    return np.maximum(np.linalg.eigvalsh(projected)[::-1], 0.0)[:WIDTH]


def _pieces(elements: Elements, unit: float) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Blocks of whole rows in float32, with the number of their first row; no copy of plain float32."""
    _, columns = elements.matrix_shape
    for block in elements.blocks(max(columns, _BLOCK)):
        values = block.values if unit == 1.0 else block.values / unit
        yield block.row, values.astype(np.float32, copy=False)


def _gram_times(elements: Elements, unit: float, block: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of the shorter side: AᵀA·block for a tall matrix, A·Aᵀ·block for a wide one."""
    rows, columns = elements.matrix_shape
    if rows >= columns:
        product = np.zeros((columns, block.shape[1]), np.float32)
        for _, piece in _pieces(elements, unit):
            product += piece.T @ (piece @ block)
        return product
    other = _transposed_times(elements, unit, block)
    product = np.empty((rows, block.shape[1]), np.float32)
    for row, piece in _pieces(elements, unit):
        product[row : row + len(piece)] = piece @ other
    return product


def _transposed_times(elements: Elements, unit: float, block: NDArray[np.float32]) -> NDArray[np.float32]:
    product = np.zeros((elements.matrix_shape[1], block.shape[1]), np.float32)
    for row, piece in _pieces(elements, unit):
        product += piece.T @ block[row : row + len(piece)]
    return product


def _projected(elements: Elements, unit: float, basis: NDArray[np.float32]) -> Floats:
    """The Gram matrix seen from the basis: small, and added up in float64."""
    rows, columns = elements.matrix_shape
    width = basis.shape[1]
    gram = np.zeros((width, width))
    if rows >= columns:
        for _, piece in _pieces(elements, unit):
            image = (piece @ basis).astype(np.float64)
            gram += image.T @ image
        return gram
    # A few directions at a time, so that a very wide matrix needs no image as large as itself.
    image = _transposed_times(elements, unit, basis)
    for start in range(0, columns, _BLOCK // width):
        piece = image[start : start + _BLOCK // width].astype(np.float64)
        gram += piece.T @ piece
    return gram


def _tail(squares: Floats) -> tuple[float, int, float, float] | None:
    """Exponent, number, start and distance of the power law that the largest squares follow.

    Density ∝ x^−α above a start; α by maximum likelihood for every start, and the start whose law is nearest to the
    data in the sense of Kolmogorov and Smirnov (Clauset, Shalizi and Newman 2009).
    """
    values = squares[squares > squares[0] * 1e-14][::-1]
    number = len(values)
    if number < FEWEST_FOR_TAIL or values[0] == values[-1]:
        return None
    logs = np.log(values)
    remaining = np.arange(number, 0, -1)
    excess = np.cumsum(logs[::-1])[::-1] - remaining * logs
    exponents = 1.0 + remaining / np.maximum(excess, 1e-300)
    best, distance = -1, np.inf
    for start in range(number - 1):
        if excess[start] <= 0:
            continue
        expected = 1.0 - np.exp((1.0 - exponents[start]) * (logs[start:] - logs[start]))
        seen: Floats = np.arange(number - start) / float(number - start)
        far = float(np.abs(expected - seen).max())
        if far < distance:
            best, distance = start, far
    return None if best < 0 else (float(exponents[best]), number - best, float(values[best]), distance)
