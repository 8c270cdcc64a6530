"""Which frames a calm condition has to see. A condition declares it in one line; the engine skips the others.

wakes_on = having("activation") | changed("gradient_state")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.batch import Flags, FrameBatch
from undertow.detect.engine.view import PLACES


@dataclass(frozen=True, slots=True)
class Wake:
    """Calls to one truth value per frame of a batch."""

    flags: Callable[[FrameBatch], Flags]

    def __call__(self, batch: FrameBatch) -> Flags:
        return self.flags(batch)

    def __or__(self, other: Wake) -> Wake:
        return Wake(lambda batch: self.flags(batch) | other.flags(batch))


def having(*names: str) -> Wake:
    """Frames that have any of these streams or scalars."""
    wanted = frozenset(names)
    return Wake(lambda batch: batch.with_any(wanted))


def changed(quantity: str) -> Wake:
    """Frames in which a layer's value is not the one known last; the first frame of a batch always."""
    stream = PLACES[quantity][0]
    return Wake(lambda batch: batch.changed(stream, batch.row(quantity)) if batch.has(stream) else batch.none())


def where(quantity: str, holds: Callable[[NDArray[np.float32]], NDArray[Any]]) -> Wake:
    """Frames with a layer of which this holds."""
    stream = PLACES[quantity][0]
    return Wake(lambda batch: batch.flags(stream, holds(batch.row(quantity))) if batch.has(stream) else batch.none())


def where_scalar(name: str, holds: Callable[[NDArray[np.float64]], NDArray[Any]]) -> Wake:
    """Frames with a scalar of which this holds; it is NaN where a frame has none."""
    return Wake(lambda batch: np.asarray(holds(batch.scalar(name)), bool))
