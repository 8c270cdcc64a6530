"""What every kernel offers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntFlag
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from undertow.measure.partials import Partials

if TYPE_CHECKING:  # what was measured can be read, and JAX can measure, without torch
    import torch


MARKS = 4  # words per tensor that a reading of `native.PlainTensors` begins with


class Want(IntFlag):
    """What to take from the one pass over memory."""

    MOMENTS = 1
    EXPONENTS = 2
    SKETCH = 4
    ALL = MOMENTS | EXPONENTS | SKETCH


class Kernel(Protocol):
    """Measures tensors. Every kernel gives the same counts and extremes, and the same sums to rounding."""

    name: str

    def measure(self, tensors: Sequence[torch.Tensor], want: Want = Want.ALL) -> Partials:
        """The partial values of all tensors. Moments are NaN-filled when they were not asked for."""
        ...

    def unit_activity(self, tensor: torch.Tensor, unit_dim: int) -> NDArray[np.uint8]:
        """1 for every index along `unit_dim` that has an element other than zero (NaN counts as one)."""
        ...

    def fingerprint(self, tensors: Sequence[torch.Tensor]) -> NDArray[np.float64] | None:
        """One number per tensor from a few of its elements, to notice edits cheaply; None where not offered.

        Zero when, and only when, those elements are all zero.
        """
        ...
