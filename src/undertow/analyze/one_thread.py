"""Linear algebra on one thread, while several tensors are worked on at once.

Threads inside of a small matrix gain little and wait for each other by spinning: beside a training that uses the same
cores, a singular value decomposition was seen to take ten times as long with two threads as with one. numpy has no
switch for its threads; threadpoolctl has (`undertow[weights]`). Without it tensors are worked on one after another.
"""

import importlib
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

_lock = threading.Lock()
_inside = 0
_limits = ExitStack()


@contextmanager
def one_thread() -> Generator[bool]:
    """Whether the library under numpy keeps to one thread until the block ends."""
    global _inside
    try:
        threadpoolctl: Any = importlib.import_module("threadpoolctl")
    except ImportError:
        yield False
        return
    blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
    if not blas.lib_controllers:  # Accelerate on a Mac has no such switch
        yield False
        return
    with _lock:
        if _inside == 0:  # the first one in limits, the last one out gives back
            _limits.enter_context(blas.limit(limits=1))
        _inside += 1
    try:
        yield True
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limits.close()
