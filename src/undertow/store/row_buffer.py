"""Several rows of a segment side by side, headers in place, so that one write takes them all to disk."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.store.template import Template


class RowBuffer:
    """`targets` are writable views of the parts of a template, for all rows at once: the first index is the row."""

    def __init__(self, template: Template, rows: int) -> None:
        self.rows = rows
        self._stride = template.stride
        whole = bytearray(bytes(template.batch) * rows)
        self._view = memoryview(whole)
        self.targets: list[NDArray[Any]] = [
            np.ndarray((rows, *part.shape), part.dtype, whole, part.place, (self._stride, *part.strides))
            for part in template.parts()
        ]

    def data(self, rows: int) -> memoryview:
        """The bytes of the first rows."""
        return self._view[: rows * self._stride]
