"""A frame as a rule sees it: rows of numbers without copies, and the facts of the layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from undertow.detect.engine.layer_index import LayerIndex
from undertow.detect.engine.sampling_rounds import PART
from undertow.detect.features.loss_trend import Loss
from undertow.schema import STREAMS, Frame

if TYPE_CHECKING:
    from undertow.detect.engine.batch import FrameBatch

PLACES = {name: (stream.name, row) for stream in STREAMS.values() for row, name in enumerate(stream.names)}


class FrameView:
    """One frame beside the layout of the run. NaN means "not measured".

    `loss` is the frame's loss beside those before it (see `loss_trend`). `batch` is what the frame is looked at
    together with, and `place` its place there.
    """

    __slots__ = ("_calls", "batch", "frame", "layout", "loss", "place", "skipped", "step")

    def __init__(self, batch: FrameBatch, place: int) -> None:
        self.batch, self.place = batch, place
        self.frame: Frame = batch.frames[place]
        self.layout: LayerIndex = batch.layout
        self.loss: Loss | None = batch.losses[place]
        self.step = self.frame.step
        self.skipped = self.frame.scalars.get("step_skipped", 0.0) == 1.0
        self._calls: NDArray[np.float32] | None = None

    def ids(self, stream: str) -> NDArray[np.int32] | None:
        """The layers of this frame's block of that stream; None when the frame has none."""
        block = self.frame.blocks.get(stream)
        return None if block is None else block.layer_ids

    def row(self, name: str) -> NDArray[np.float32] | None:
        """One number per layer of the block; not a copy."""
        stream, row = PLACES[name]
        block = self.frame.blocks.get(stream)
        return None if block is None else block.values[row]

    def scalar(self, name: str) -> float:
        return self.frame.scalars.get(name, math.nan)

    def all_layers(self, name: str) -> NDArray[np.float32]:
        """One number per layer of the run."""
        return self.frame.spread(name, self.layout.count)

    def calls(self, ids: NDArray[np.int32]) -> NDArray[np.float32] | None:
        """How often the owning modules ran: 0 for not at all, NaN for unknown; None without activations.

        When a frame has activations, a module it does not list or could not measure did not run.
        """
        if self._calls is None:
            row = self.row("activation_calls")
            if row is None or not (row > 0).any():
                return None
            self._calls = np.nan_to_num(self.all_layers("activation_calls"))
        return self._of_owners(self._calls, ids)

    def calls_now(self, ids: NDArray[np.int32]) -> NDArray[np.float32] | None:
        """The same in this very step: NaN also for modules whose turn was at another step of the round."""
        return self._of_owners(self.now("activation_calls"), ids) if PART in self.frame.blocks else self.calls(ids)

    def now(self, name: str) -> NDArray[np.float32]:
        """Of modules, one number per layer of the run: NaN also for those whose turn was at another step."""
        part = self.frame.blocks.get(PART)
        if part is None:
            return self.all_layers(name)
        values = np.full(self.layout.count, np.nan, np.float32)
        values[part.layer_ids] = part.quantity(name)
        return values

    def _of_owners(self, values: NDArray[np.float32], ids: NDArray[np.int32]) -> NDArray[np.float32]:
        owner = self.layout.module[ids]
        return np.where(owner >= 0, values[owner], np.float32(np.nan))
