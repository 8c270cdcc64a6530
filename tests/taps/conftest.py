import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import undertow


@pytest.fixture(autouse=True)
def one_thread_and_seed() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        gc.collect()  # a watch that finds a compiled module alive takes no activations: that of the next test, say


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Callable[..., undertow.Watch]]:
    """Begins a watch of every step, closed with the test."""
    begun: list[undertow.Watch] = []

    def begin(*arguments: object, **settings: object) -> undertow.Watch:
        settings = {"every": 1, "quiet": True, "run_dir": tmp_path / f"run{len(begun)}", **settings}
        begun.append(undertow.watch(*arguments, **settings))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()
