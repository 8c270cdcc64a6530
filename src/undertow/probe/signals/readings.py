"""What the signals of one step are, before the background thread makes numbers of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.probe.signals.loss import LossReading


@dataclass(slots=True)
class SignalReadings:
    loss: LossReading | None = None
    numbers: dict[str, float] = field(default_factory=dict)  # scalars of the frame, as they are
    data_address: int = 0
    data: Any = None  # Partials of the data that enters the model, or the same still on a device

    @property
    def nbytes(self) -> int:
        return self.loss.nbytes if self.loss is not None else 0


@dataclass(slots=True)
class HeldReading:
    """What is known of the parameters one optimizer has just stepped, beside their statistics."""

    slots: NDArray[np.int64]
    state: NDArray[np.float32]  # quantities of the stream `optimizer` × slots
    row_spread: NDArray[np.float32]
    rows_unused: NDArray[np.float32]
