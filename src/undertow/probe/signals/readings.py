"""What the signals of one step are, before the background thread makes numbers of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from undertow.probe.signals.loss import LossReading


@dataclass(slots=True)
class SignalReadings:
    loss: LossReading | None = None
    data: Any = None  # Partials of the data that enters the model, or the same still on a device

    @property
    def nbytes(self) -> int:
        return self.loss.nbytes if self.loss is not None else 0
