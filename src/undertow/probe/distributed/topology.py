"""Which of several processes this one is."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class RankPlace:
    rank: int
    world: int

    @property
    def leads(self) -> bool:
        """The first rank writes the run; the others send it what they measure."""
        return self.rank == 0


def rank_now() -> RankPlace | None:
    """None when this process trains alone.

    Before the process group is made, the variables that `torchrun` sets tell.
    """
    if dist.is_available() and dist.is_initialized():
        found = RankPlace(dist.get_rank(), dist.get_world_size())
    else:
        try:
            found = RankPlace(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        except (KeyError, ValueError):
            return None
    return found if found.world > 1 and 0 <= found.rank < found.world else None


def group_is_made() -> bool:
    return dist.is_available() and dist.is_initialized()
