"""Singular values of a weight matrix: largest, stable rank, condition, and how heavy the tail of their squares is.

Up to `EXACT_UP_TO` on the shorter side all singular values are computed, from the Gram matrix in float64. Above it a
randomised block Krylov method reads the matrix `POWERS` times and holds no copy of it. Its Ritz values are the largest
singular values where they have converged; the others, each with a weight, stand for the rest of the spectrum: because
the start is random, they are the nodes of a quadrature for it, from which the tail can be told though most of its
values are not known one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.checkpoints.elements import Elements
from undertow.schema.checkpoints import Spectrum

Floats = NDArray[np.float64]

EXACT_UP_TO = 1024
# Narrow blocks and many of them: for the same work far more exact than wide ones (on a random matrix of 2,048, the
# largest value to 3e-5 with 16 × 12, to 1e-2 with 64 × 4).
WIDTH = 16
POWERS = 12
# Share of a Ritz vector in the last block below which its value counts as converged: then right to about 1e-4.
CONVERGED = 1e-3
FEWEST_FOR_TAIL = 50
_BLOCK = 1 << 20
_SEED = 0x5EED


def spectrum(elements: Elements, norm: float, reach: float, exact_up_to: int = EXACT_UP_TO) -> Spectrum | None:
    """`norm` is Frobenius', `reach` the largest absolute value. None for a matrix of zeros."""
    rows, columns = elements.matrix_shape
    total = min(rows, columns)
    if total == 0 or reach <= 0 or norm <= 0:
        return None
    exact = total <= max(exact_up_to, WIDTH * POWERS)
    # Squares of very small or large weights would leave the range of float32.
    unit = 1.0 if 1e-9 < reach < 1e9 else reach
    if exact:
        squares = _all_squares(elements, unit)
        counts, known = np.ones(len(squares)), len(squares)
    else:
        squares, counts, known = _nodes(elements, unit)
    largest = float(np.sqrt(squares[0])) * unit
    missing: dict[str, str] = {}
    condition = None
    if not exact:
        missing["condition"] = f"of {total:,} singular values only the largest were computed"
    elif squares[-1] <= squares[0] * np.finfo(np.float64).eps * max(rows, columns):
        missing["condition"] = "the smallest singular value is zero within rounding"
    else:
        condition = float(np.sqrt(squares[0] / squares[-1]))
    tail = _tail(squares, counts)
    if tail is None:
        missing["tail_exponent"] = f"a tail needs at least {FEWEST_FOR_TAIL} different singular values"
    return Spectrum(
        method="exact" if exact else "randomised",
        values_known=known,
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


def _slabs(elements: Elements, unit: float, dtype: type[np.floating[Any]]) -> Iterator[NDArray[Any]]:
    """The matrix in pieces, divided by unit, standing upright: the shorter side of the matrix is the second axis of
    every piece. No copy of what already has the type."""
    rows, columns = elements.matrix_shape
    matrix = elements.matrix
    step = max(1, _BLOCK // min(rows, columns))
    for start in range(0, max(rows, columns), step):
        stored = matrix[start : start + step] if rows >= columns else matrix[:, start : start + step].T
        values = elements.widen(stored)
        yield (values if unit == 1.0 else values / unit).astype(dtype, copy=False)


def _all_squares(elements: Elements, unit: float) -> Floats:
    """The eigenvalues of the smaller Gram matrix of x / unit, falling."""
    side = min(elements.matrix_shape)
    gram = np.zeros((side, side))
    for slab in _slabs(elements, unit, np.float64):
        gram += slab.T @ slab
    return np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0)


def _nodes(elements: Elements, unit: float) -> tuple[Floats, Floats, int]:
    """Ritz values of the Gram matrix of the shorter side, falling; how many eigenvalues each stands for; and how many
    of them, from the first on, have converged and stand for themselves."""
    side = min(elements.matrix_shape)
    generator = np.random.default_rng(_SEED)  # our own stream, always the same: results repeat
    block = generator.standard_normal((side, WIDTH)).astype(np.float32)
    basis = np.zeros((side, 0), np.float32)
    for power in range(POWERS):
        block = _new_directions(block, basis)
        basis = np.concatenate([basis, block], axis=1)
        if power + 1 == POWERS or block.shape[1] == 0:  # none: the whole range of the matrix is in the basis
            break
        block = _gram_times(elements, unit, block)
    squares, vectors = np.linalg.eigh(_projected(elements, unit, basis))
    squares, vectors = np.maximum(squares[::-1], 0.0), vectors[:, ::-1]
    last = (vectors[basis.shape[1] - block.shape[1] :] ** 2).sum(axis=0)
    known = int(np.argmax(np.append(last, 1.0) > CONVERGED))
    # The share of the random start in a Ritz vector measures how many eigenvalues lie around it.
    counts: Floats = (vectors[:WIDTH] ** 2).sum(axis=0)
    counts[:known] = 1.0
    if known < len(counts):
        counts[known:] *= (side - known) / counts[known:].sum()
    return squares, counts, known


def _new_directions(block: NDArray[np.float32], basis: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the block adds to the basis, orthonormal. The second turn removes what rounding left in the first; columns
    that it shortens were nothing but rounding."""
    turned = np.linalg.qr(block - basis @ (basis.T @ block))[0]
    turned, remainder = np.linalg.qr(turned - basis @ (basis.T @ turned))
    return turned[:, np.abs(np.diagonal(remainder)) > 0.99]


def _gram_times(elements: Elements, unit: float, block: NDArray[np.float32]) -> NDArray[np.float32]:
    product = np.zeros_like(block)
    for slab in _slabs(elements, unit, np.float32):
        product += slab.T @ (slab @ block)
    return product


def _projected(elements: Elements, unit: float, basis: NDArray[np.float32]) -> Floats:
    """The Gram matrix seen from the basis: small, and added up in float64."""
    gram = np.zeros((basis.shape[1], basis.shape[1]))
    for slab in _slabs(elements, unit, np.float32):
        image = (slab @ basis).astype(np.float64)
        gram += image.T @ image
    return gram


def _tail(squares: Floats, counts: Floats) -> tuple[float, int, float, float] | None:
    """Exponent, number, start and distance of the power law that the largest squares follow.

    Density ∝ x^−α above a start; α by maximum likelihood for every start, and the start whose law is nearest to the
    data in the sense of Kolmogorov and Smirnov (Clauset, Shalizi and Newman 2009). A square that stands for several
    is taken as the middle one of them.
    """
    real = squares > squares[0] * 1e-12
    values, counts = squares[real][::-1], counts[real][::-1]
    if counts.sum() < FEWEST_FOR_TAIL or values[0] == values[-1]:
        return None
    logs = np.log(values)
    remaining = np.cumsum(counts[::-1])[::-1]
    excess = np.cumsum((counts * logs)[::-1])[::-1] - remaining * logs
    below = np.cumsum(counts) - counts  # eigenvalues under each node
    middle = below + (counts - 1.0) / 2.0
    best, exponent, distance = -1, 0.0, np.inf
    for start in range(len(values) - 1):
        if excess[start] <= 0:
            continue
        alpha = 1.0 + remaining[start] / excess[start]
        expected = 1.0 - np.exp((1.0 - alpha) * (logs[start:] - logs[start]))
        far = float(np.abs(expected - (middle[start:] - below[start]) / remaining[start]).max())
        if far < distance:
            best, exponent, distance = start, float(alpha), far
    return None if best < 0 else (exponent, round(float(remaining[best])), float(values[best]), distance)
