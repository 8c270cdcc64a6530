"""Several processes that share the work on one checkpoint: each takes some of its tensors, the first collects."""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Team:
    rank: int
    size: int
    on_this_machine: int  # of them

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def mine(self, items: Sequence[Item], size: Callable[[Item], int]) -> list[int]:
        """Places of the items that this process takes: about the same amount for each, the same split in all."""
        loads = [0] * self.size
        taken: list[int] = []
        for place in sorted(range(len(items)), key=lambda place: (-size(items[place]), place)):
            least = loads.index(min(loads))
            loads[least] += max(1, size(items[place]))
            if least == self.rank:
                taken.append(place)
        return sorted(taken)

    def collect(self, found: dict[int, Any]) -> dict[int, Any] | None:
        """What all have found, in the process that leads; None in the others."""
        import torch.distributed as dist

        everything: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(found, everything, dst=0)
        if everything is None:
            return None
        return {place: one for part in everything for place, one in part.items()}


@contextmanager
def team_here() -> Generator[Team | None]:
    """The processes that `torchrun` has started beside this one; None in a process that works alone."""
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        rank, size = 0, 1
    if size < 2:
        yield None
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield Team(rank, size, int(os.environ.get("LOCAL_WORLD_SIZE", size)))
    finally:
        dist.destroy_process_group()
