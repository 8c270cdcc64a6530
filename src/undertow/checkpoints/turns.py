"""Several tensors at a time, but together no larger than the largest one alone, or than `ALWAYS`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

ALWAYS = 64 << 20  # bytes that may be under way whatever the largest tensor is: no machine is short of so little

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
    room = max(ALWAYS, *map(size, items))
    waiting = deque(items)
    started: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="undertow-weights") as pool:
        try:
            while waiting or started:
                busy = {future: size(item) for item, future in started if not future.done()}
                if waiting and len(busy) < workers and (not busy or sum(busy.values()) + size(waiting[0]) <= room):
                    item = waiting.popleft()
                    started.append((item, pool.submit(work, item)))
                elif started[0][1].done():
                    item, future = started.popleft()
                    yield item, future.result()
                else:
                    wait(busy, return_when=FIRST_COMPLETED)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
