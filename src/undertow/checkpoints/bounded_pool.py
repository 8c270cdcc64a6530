"""Several tensors at a time, but together no larger than the largest one alone, or than `ALWAYS`."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

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
    table = _Table[Result]([size(item) for item in items])

    def serve() -> None:
        while (taken := table.take()) is not None:
            place, future = taken
            try:
                future.set_result(work(items[place]))
            except BaseException as problem:
                future.set_exception(problem)
            table.put_back(place)

    threads = [threading.Thread(target=serve, name=f"undertow-weights-{number}") for number in range(workers)]
    try:
        for thread in threads:
            thread.start()
        for item, future in zip(items, table.futures, strict=True):
            yield item, future.result()
            table.go_on()
    finally:
        table.close()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


class _Table(Generic[Result]):
    """What lies on the table for the workers to take: they choose by themselves, so that none waits to be told."""

    def __init__(self, sizes: list[int]) -> None:
        self.futures: list[Future[Result]] = [Future() for _ in sizes]
        self._sizes = sizes
        self._room = max(ALWAYS, *sizes)
        self._waiting = list(range(len(sizes)))
        self._busy: set[int] = set()
        self._following = 0  # the first one whose result nobody has asked for
        self._changed = threading.Condition()

    def take(self) -> tuple[int, Future[Result]] | None:
        """The next one that fits; None when all are taken."""
        with self._changed:
            while self._waiting:
                left = self._room - sum(self._sizes[place] for place in self._busy)
                near = [place for place in self._waiting[:_AHEAD] if place < self._following + _AHEAD]
                fitting = [place for place in near if self._sizes[place] <= left or not self._busy]
                if fitting:
                    place = max(fitting, key=self._sizes.__getitem__)
                    self._waiting.remove(place)
                    self._busy.add(place)
                    return place, self.futures[place]
                self._changed.wait()
            return None

    def put_back(self, place: int) -> None:
        with self._changed:
            self._busy.remove(place)
            self._changed.notify_all()

    def go_on(self) -> None:
        with self._changed:
            self._following += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()
