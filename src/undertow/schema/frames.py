"""One row of a run: what was measured at one optimizer step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from undertow.schema.quantities import QUANTITIES, STREAMS

_FLOAT = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Block:
    """The values of one stream for some layers, or connections: (quantities × layers), or (1 × layers × width)
    blocks flattened to (quantities × layers·width) for sketches. Float32, NaN where not measured.
    """

    stream: str
    layer_ids: NDArray[np.int32]
    values: NDArray[np.float32]

    def __post_init__(self) -> None:
        quantities = STREAMS[self.stream].quantities
        expected = (len(quantities), len(self.layer_ids) * quantities[0].width)
        if self.values.shape != expected or self.values.dtype != _FLOAT:
            raise ValueError(
                f"block of stream {self.stream!r} has shape {self.values.shape} "
                f"{self.values.dtype}; expected {expected} float32"
            )

    def quantity(self, name: str) -> NDArray[np.float32]:
        """One value per layer of this block (for sketches: layers × width)."""
        row = self.values[STREAMS[self.stream].names.index(name)]
        width = QUANTITIES[name].width
        return row.reshape(len(self.layer_ids), width) if width > 1 else row


@dataclass(frozen=True, slots=True)
class Frame:
    """What was recorded at a step.

    A step normally has one frame. Optimizers that step one after another with no backward pass
    between them share a step and write one frame each, over disjoint layers; `sequence` numbers
    frames in the order they were written.
    """

    sequence: int
    step: int
    time: float
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])
    blocks: Mapping[str, Block] = field(default_factory=dict[str, Block])

    def spread(self, name: str, layer_count: int) -> NDArray[np.float32]:
        """The quantity for all layers of the run by layer id, NaN where this frame has none."""
        out = np.full(layer_count, np.nan, np.float32)
        block = self.blocks.get(QUANTITIES[name].stream)
        if block is not None:
            out[block.layer_ids] = block.quantity(name)
        return out
