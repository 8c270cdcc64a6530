"""Where modules are sampled in turn: to the rules, a round of such samples is one sample of all of them.

A rule that compares layers or counts frames then need not care at which of its steps a round reached a module.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from undertow.schema import Block, Frame
from undertow.schema.quantities import ACTIVATION, ACTIVATION_ROUND, FLOW

PART = "activation part"  # the block of a frame that looked at some of the modules, as it was recorded
_NONFINITE = [ACTIVATION.names.index(name) for name in ACTIVATION.names if name.endswith("nonfinite_count")]


class SamplingRounds:
    def __init__(self) -> None:
        self._so_far: Block | None = None  # what the round that is under way has seen

    def shown(self, frame: Frame) -> Frame:
        """The frame as rules see it: activations where they are of all modules, or where something is not finite, and
        nothing of connections, which are no layers."""
        if FLOW.name in frame.blocks:
            frame = replace(frame, blocks={name: one for name, one in frame.blocks.items() if name != FLOW.name})
        block, share = frame.blocks.get(ACTIVATION.name), frame.scalars.get(ACTIVATION_ROUND)
        if block is None:
            return frame
        if share is None:
            self._so_far = None
            return frame
        so_far = Block(ACTIVATION.name, block.layer_ids, _filled(block, self._so_far))
        self._so_far = None if share >= 1 else so_far
        blocks = {name: one for name, one in frame.blocks.items() if one is not block} | {PART: block}
        if share >= 1 or (block.values[_NONFINITE] > 0).any():
            blocks[ACTIVATION.name] = so_far
        return replace(frame, blocks=blocks)


def _filled(block: Block, before: Block | None) -> NDArray[np.float32]:
    """What a frame lacks, from those before it."""
    if before is None:
        return block.values
    known = before.values
    if not np.array_equal(before.layer_ids, block.layer_ids):  # new modules were found
        known = np.full_like(block.values, np.nan)
        _, here, there = np.intersect1d(block.layer_ids, before.layer_ids, return_indices=True)
        known[:, here] = before.values[:, there]
    return np.where(np.isnan(block.values), known, block.values)
