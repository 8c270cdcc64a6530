"""The elements of one tensor as they are stored, widened block by block: numpy knows neither bfloat16 nor float8."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

# 64 kB as float64: temporary arrays of this size stay in the cache and are reused, where larger ones are fetched
# from the system afresh each time (measured: 11 against 41 ns for an element).
BLOCK = 1 << 13
# Name → how numpy holds the stored bits.
STORED: dict[str, np.dtype[Any]] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "float8_e4m3fn": np.dtype("u1"),
    "float8_e5m2": np.dtype("u1"),
}


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of the tensor seen as a matrix: whole rows, or a piece of one very long row."""

    row: int
    column: int
    values: NDArray[Any]  # two-dimensional; float64 for a float64 tensor, else float32


@dataclass(frozen=True, slots=True)
class Elements:
    """`raw` is contiguous, in the stored type of `dtype` (a key of `STORED`), in the shape of the tensor."""

    raw: NDArray[Any]
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.raw.shape

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """First dimension × all others; a vector is one row."""
        shape = self.raw.shape
        return (shape[0], prod(shape[1:])) if len(shape) > 1 else (1, prod(shape))

    @property
    def matrix(self) -> NDArray[Any]:
        return self.raw.reshape(self.matrix_shape)

    def widen(self, raw: NDArray[Any]) -> NDArray[Any]:
        """The values of stored bits, exactly; no copy where numpy already has the type."""
        if self.dtype == "bfloat16":
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if self.dtype == "float16":
            return raw.astype(np.float32)
        if self.dtype in _SMALL:
            return _SMALL[self.dtype][raw]
        return raw

    def blocks(self, size: int = BLOCK) -> Iterator[Block]:
        """All elements in row-major order, about `size` at a time."""
        rows, columns = self.matrix_shape
        if rows == 0 or columns == 0:
            return
        matrix = self.matrix
        if columns > size:
            for row in range(rows):
                for column in range(0, columns, size):
                    yield Block(row, column, self.widen(matrix[row : row + 1, column : column + size]))
            return
        step = size // columns
        for row in range(0, rows, step):
            yield Block(row, 0, self.widen(matrix[row : row + step]))

    def digest(self) -> bytes:
        """Equal for equal bytes, and for practical purposes only then."""
        hasher = hashlib.blake2b(digest_size=16)
        hasher.update(f"{self.dtype}{self.shape}".encode())
        if self.raw.size:
            hasher.update(self.raw.reshape(-1).view(np.uint8).data)
        return hasher.digest()


def _table(exponent_bits: int, mantissa_bits: int, *, has_infinity: bool) -> NDArray[np.float32]:
    """The 256 values of an 8-bit float: sign, exponent, mantissa."""
    code = np.arange(256)
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    size = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    top = exponent == (1 << exponent_bits) - 1
    if has_infinity:
        size = np.where(top, np.where(mantissa == 0, np.inf, np.nan), size)
    else:
        size = np.where(top & (mantissa == 1 - 2.0**-mantissa_bits), np.nan, size)
    return np.where(code & 128, -size, size).astype(np.float32)


_SMALL = {
    "float8_e4m3fn": _table(4, 3, has_infinity=False),
    "float8_e5m2": _table(5, 2, has_infinity=True),
}
