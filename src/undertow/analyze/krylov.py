"""The spectrum of a large matrix from a small Krylov space, without a copy of the matrix.

A block of random directions is multiplied by the Gram matrix again and again. In the space of all these directions the
Gram matrix is small. Its eigenvalues (Ritz values) are the largest ones of the whole where they have converged; the
others, each with a weight, stand for the rest of the spectrum: because the start is random, they are the nodes of a
quadrature for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.gram import gram, slabs
from undertow.checkpoints.elements import Elements

Floats = NDArray[np.float64]

# Narrow blocks and many of them: for the same work far more exact than wide ones (on a random matrix of 2,048, the
# largest value to 3e-5 with 16 × 12, to 1e-2 with 64 × 4).
WIDTH = 16
POWERS = 12
# Share of a Ritz vector in the last block below which its value counts as converged: then right to about 1e-4.
CONVERGED = 1e-3
# Where the matrix is taller than this, and narrow, its Gram matrix is cheaper to make once than to go without.
_TALL = 2
_NARROW = 1280
_SEED = 0x5EED


@dataclass(frozen=True, slots=True)
class Nodes:
    """Squares of singular values, falling; `counts` of them each stands for; the first `known` stand for themselves."""

    squares: Floats
    counts: Floats
    known: int


def spectral_nodes(elements: Elements, unit: float) -> Nodes:
    """Of the Gram matrix of the shorter side of x / unit. A large matrix is read `POWERS` times, a narrow one once."""
    times = _gram_times(elements, unit)
    side = min(elements.matrix_shape)
    generator = np.random.default_rng(_SEED)  # our own stream, always the same: results repeat
    block = generator.standard_normal((side, WIDTH)).astype(np.float32)
    basis = np.empty((side, WIDTH * POWERS), np.float32, order="F")
    small = np.zeros((WIDTH * POWERS, WIDTH * POWERS))
    size = last = 0
    for _ in range(POWERS):
        block = _new_directions(block, basis[:, :size])
        last = block.shape[1]
        if last == 0:  # the whole range of the matrix is in the basis
            break
        basis[:, size : size + last] = block
        block = times(block)
        small[: size + last, size : size + last] = basis[:, : size + last].T @ block
        size += last
    squares, vectors = np.linalg.eigh(small[:size, :size], UPLO="U")
    squares, vectors = np.maximum(squares[::-1], 0.0), vectors[:, ::-1]
    unsettled = np.square(vectors[size - last :]).sum(axis=0)
    known = int(np.argmax(np.append(unsettled, 1.0) > CONVERGED))
    # The share of the random start in a Ritz vector measures how many eigenvalues lie around it.
    counts: Floats = np.square(vectors[:WIDTH]).sum(axis=0)
    counts[:known] = 1.0
    if known < len(counts):
        counts[known:] *= (side - known) / counts[known:].sum()
    return Nodes(squares, counts, known)


def _new_directions(block: NDArray[np.float32], basis: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the block adds to the basis, orthonormal. The second turn removes what rounding left in the first; columns
    that it shortens were nothing but rounding."""
    turned = np.linalg.qr(block - basis @ (basis.T @ block))[0]
    turned, remainder = np.linalg.qr(turned - basis @ (basis.T @ turned))
    return turned[:, np.abs(np.diagonal(remainder)) > 0.99]


def _gram_times(elements: Elements, unit: float) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    short, long = sorted(elements.matrix_shape)
    if short <= _NARROW and long >= _TALL * short:
        small = gram(elements, unit, np.float32).astype(np.float32, copy=False)
        return lambda block: small @ block

    def times(block: NDArray[np.float32]) -> NDArray[np.float32]:
        product = np.zeros_like(block)
        for slab in slabs(elements, unit, np.float32):
            product += slab.T @ (slab @ block)
        return product

    return times
