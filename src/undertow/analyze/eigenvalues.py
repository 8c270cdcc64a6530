"""All eigenvalues of a symmetric matrix, without its vectors.

numpy has one driver for that. The two routines behind it, called directly, take two thirds of its time, and half of it
in float32: reduce to three diagonals, then find the values of these.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.analyze.openblas import OpenBlas, openblas

_LOWER = ctypes.c_char_p(b"L")
_WIDE = 64  # columns that the reduction may take at once


def eigenvalues(symmetric: NDArray[Any], dtype: type[np.floating[Any]]) -> NDArray[np.float64]:
    """Falling, none below zero: of a Gram matrix, computed in `dtype`. Right to a few roundings of the largest.

    The matrix is used up.
    """
    largest = float(symmetric.diagonal().max(initial=0.0))
    if largest <= 0.0:
        return np.zeros(len(symmetric))
    symmetric /= largest
    values = _by_two_routines(symmetric.astype(dtype))
    if values is None:
        values = np.linalg.eigvalsh(symmetric)
    return np.maximum(values[::-1].astype(np.float64), 0.0) * largest


def _by_two_routines(matrix: NDArray[Any]) -> NDArray[Any] | None:
    """Rising; overwrites the matrix. None where the library is not there, or fails."""
    library = openblas()
    letter = "s" if matrix.dtype == np.float32 else "d"
    routines = None if library is None else _routines(library, letter)
    if library is None or routines is None:
        return None
    reduce, solve = routines
    side = len(matrix)
    diagonal, beside, turns = (np.zeros(side, matrix.dtype) for _ in range(3))
    room = np.empty(_WIDE * side, matrix.dtype)
    order, length = library.integer(side), library.integer(len(room))
    failed = library.integer(0)
    size, status = ctypes.byref(order), ctypes.byref(failed)
    text = ctypes.c_size_t(1)  # Fortran passes the length of a text last
    reduce(
        _LOWER, size, _at(matrix), size, _at(diagonal), _at(beside), _at(turns),
        _at(room), ctypes.byref(length), status, text,
    )  # fmt: skip
    if failed.value == 0:
        solve(size, _at(diagonal), _at(beside), status)
    return diagonal if failed.value == 0 else None


@cache
def _routines(library: OpenBlas, letter: str) -> tuple[Any, Any] | None:
    reduce, solve = library.lapack(f"{letter}sytrd"), library.lapack(f"{letter}sterf")
    return None if reduce is None or solve is None else (reduce, solve)


def _at(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
