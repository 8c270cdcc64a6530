from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import undertow


@pytest.fixture(autouse=True)
def one_thread_and_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., undertow.Watch]:
    """`undertow.watch` into a folder of the test's own, every step, quiet."""
    count = 0

    def begin(model: Any = None, **arguments: Any) -> undertow.Watch:
        nonlocal count
        count += 1
        arguments = {"every": 1, "quiet": True, "run_dir": tmp_path / f"run{count}", **arguments}
        return undertow.watch(model, **arguments)

    return begin
