"""Which of several processes this one is, and who sends to whom.

A few ranks all send to the first one; more form a tree, and what a rank is sent it passes on as one part with its own,
so that nobody receives from more than a few dozen however many there are. Those below a rank are the ones right behind
it, which hold neighbouring shards: together they are a block again.
"""

import os
from collections.abc import Sequence
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


def group_is_made() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank_now() -> RankPlace | None:
    """None when this process trains alone.

    Before the process group is made, the variables that `torchrun` sets tell.
    """
    if group_is_made():
        found = RankPlace(dist.get_rank(), dist.get_world_size())
    else:
        try:
            found = RankPlace(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        except (KeyError, ValueError):
            return None
    return found if found.world > 1 and 0 <= found.rank < found.world else None


STAR = 16  # up to so many ranks all send to the first one
WIDTH = 8


@dataclass(frozen=True, slots=True)
class Branch:
    parent: int | None
    children: tuple[int, ...]
    patience: float  # as a share of the first rank's: whoever passes parts on must be done before it is given up


def branch_of(rank: int, members: Sequence[int]) -> Branch:
    """`members` are all ranks that are watched, in order, the first one included.

    A member's number is written to the base of the tree's width; without its last digit that is not zero it is its
    parent's.
    """
    width = len(members) if len(members) <= STAR else WIDTH
    number, levels = members.index(rank), 1
    while width**levels < len(members):
        levels += 1
    children = tuple(member for one, member in enumerate(members) if one and _above(one, width) == number)
    depth, upwards = 0, number
    while upwards:
        depth, upwards = depth + 1, _above(upwards, width)
    return Branch(members[_above(number, width)] if number else None, children, 1 - depth / (levels + 1))


def _above(number: int, width: int) -> int:
    power = width
    while number % power == 0:
        power *= width
    return number - number % power
