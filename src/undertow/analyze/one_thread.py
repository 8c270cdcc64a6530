"""Linear algebra on one thread, while several tensors are worked on at once.

Threads inside of a small matrix gain little and wait for each other by spinning: beside a training that uses the same
cores, a singular value decomposition was seen to take ten times as long with two threads as with one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache

from undertow.analyze.openblas import openblas

_lock = threading.Lock()
_inside = 0
_before = 0


@contextmanager
def one_thread() -> Generator[bool]:
    """Whether numpy's own OpenBLAS keeps to one thread until the block ends; another library is left as it is."""
    global _inside, _before
    controls = _controls()
    if controls is None:
        yield False
        return
    get, limit = controls
    with _lock:
        if _inside == 0:
            _before = get()
            limit(1)
        _inside += 1
    try:
        yield True
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                limit(_before)


@cache
def _controls() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """The two functions that ask for the number of threads and set it."""
    library = openblas()
    get = None if library is None else library.control("get_num_threads")
    limit = None if library is None else library.control("set_num_threads")
    return None if get is None or limit is None else (get, limit)
