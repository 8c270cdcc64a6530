"""How often a slow condition is judged: at nearly every step early on, then at steps ever further apart."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class Cadence:
    """Due at the first frame and then when an eighth more steps have passed, so a long run costs a logarithm."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next = 0

    def is_due(self, step: int) -> bool:
        if step < self._next:
            return False
        self._next = step + 1 + step // 8
        return True

    def due(self, steps: Iterable[int]) -> NDArray[np.bool_]:
        """What `is_due` would say of these steps, one after the other."""
        ahead = Cadence()
        ahead._next = self._next
        return np.array([ahead.is_due(step) for step in steps], bool)
