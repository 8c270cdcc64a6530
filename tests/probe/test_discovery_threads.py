"""Looking for models must not disturb what other threads are making at that moment."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from torch import nn

from undertow.probe import discovery


@pytest.mark.skipif(not hasattr(discovery._native, "instances"), reason="built without a C compiler")
def test_other_threads_make_tuples_meanwhile() -> None:
    """A list of all objects refers to a tuple that is being made, and such a tuple cannot grow."""
    problems: list[BaseException] = []
    made, ended = 0, threading.Event()

    def make() -> None:
        nonlocal made
        while not ended.is_set():
            try:
                assert len(tuple(map(abs, iter(_counted(500))))) == 500
                made += 1
            except BaseException as problem:
                problems.append(problem)

    def _counted(count: int) -> Iterator[int]:
        yield from range(count)

    model, interval = nn.Linear(2, 2), sys.getswitchinterval()
    thread = threading.Thread(target=make)
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        for _ in range(20):
            assert any(one is model for one in discovery.find_roots([model.weight]))
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()
    assert made
    assert problems == []
