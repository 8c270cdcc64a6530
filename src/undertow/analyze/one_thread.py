"""Linear algebra on one thread, while several tensors are worked on at once.

Threads inside of a small matrix gain little and wait for each other by spinning: beside a training that uses the same
cores, a singular value decomposition was seen to take ten times as long with two threads as with one.
"""

from __future__ import annotations

import ctypes
import glob
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache

import numpy as np

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
    """The two functions of the OpenBLAS that numpy's wheels bring along."""
    folder = os.path.join(os.path.dirname(os.path.dirname(np.__file__)), "numpy.libs")
    for path in sorted(glob.glob(os.path.join(folder, "lib*openblas*"))):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix, suffix in (
            ("scipy_openblas", "64_"),
            ("scipy_openblas", ""),
            ("openblas", "64_"),
            ("openblas", ""),
        ):
            get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            limit = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
            if get is not None and limit is not None:
                limit.restype = None
                return get, limit
    return None
