"""Several tensors at a time, but together no larger than the largest one alone, or than `ALWAYS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

ALWAYS = 64 << 20  # bytes that may be under way whatever the largest tensor is: no machine is short of so little
# The largest of the next few goes first: a large one left for the end would keep the other workers waiting.
_AHEAD = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_turn(
    items: Sequence[Item], size: Callable[[Item], int], work: Callable[[Item], Result], workers: int
) -> Iterator[tuple[Item, Result]]:
    """Results in the order of the items. What is under way takes no more than the largest item or `ALWAYS`."""
    if workers <= 1 or len(items) <= 1:
        for item in items:
            yield item, work(item)
        return
    sizes = [size(item) for item in items]
    room = max(ALWAYS, *sizes)
    waiting = list(range(len(items)))
    started: dict[int, Future[Result]] = {}
    following = 0
    with ThreadPoolExecutor(workers, thread_name_prefix="undertow-weights") as pool:
        try:
            while following < len(items):
                busy = {future: sizes[place] for place, future in started.items() if not future.done()}
                left = room - sum(busy.values())
                near = [place for place in waiting[:_AHEAD] if place < following + _AHEAD]
                fitting = [place for place in near if sizes[place] <= left or not busy]
                if fitting and len(busy) < workers:
                    place = max(fitting, key=sizes.__getitem__)
                    waiting.remove(place)
                    started[place] = pool.submit(work, items[place])
                elif following in started and started[following].done():
                    yield items[following], started.pop(following).result()
                    following += 1
                else:
                    wait(busy, return_when=FIRST_COMPLETED)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
