"""A small training that goes wrong, watched from this process or as a script of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import undertow

SCRIPT = """
import os, sys, time
sys.path[:0] = {path!r}
from tests.recording.trainings import parts, recorder_process, step
import undertow
{body}
"""


def parts(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.02), torch.randn(32, 12), torch.randn(32, 1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    loss = (model(inputs) - targets).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train(
    folder: Path, chronicler: str, steps: int = 120, at: dict[int, Any] | None = None, **settings: Any
) -> undertow.Watch:
    """From step 60 on the learning rate is far too large. `at` holds functions of the watch, by step."""
    model, optimizer, inputs, targets = parts()
    settings = {"every": 1, "activations": False, "quiet": True, "chronicler": chronicler, **settings}
    watch = undertow.watch(model, optimizer, run_dir=folder, **settings)
    for number in range(steps):
        if number == 60:
            optimizer.param_groups[0]["lr"] = 50.0
        if at is not None and number in at:
            at[number](watch)
        step(model, optimizer, inputs, targets)
    return watch


def recorder_process(watch: undertow.Watch) -> Any:
    """The other process, if there is one, or one that is starting."""
    return watch._run.recording._client._process


def script(body: str) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(path=[root], body=body)], stdout=subprocess.PIPE, text=True
    )
