"""What is watched: `python -m benchmarks.soak.programs NAME FOLDER DISK_BUDGET`, until standard input ends."""

from __future__ import annotations

import gc
import shutil
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

import undertow

_PAUSE = 0.01  # seconds after a step: a soak is about time, not about speed
_TURN = 400  # steps from one fault to the next
_FAULTY = 120  # steps that a fault lasts
_SHORT = 6  # steps of a watch among many: the more there are, the sooner their caches and allocators are warm
_KEPT = 5  # runs of the cycles that are left for the dashboard to list


class Net(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first, self.middle, self.head = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.is_cut = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.middle(self.first(inputs).relu()).relu()
        return self.head(hidden.detach() if self.is_cut else hidden)


def train(model: Net, optimizer: torch.optim.Optimizer) -> None:
    inputs = torch.randn(32, 16)
    optimizer.zero_grad()
    (model(inputs) - inputs[:, :1]).square().mean().backward()
    optimizer.step()
    time.sleep(_PAUSE)


def long_training(folder: Path, disk_budget: int, ended: threading.Event) -> None:
    """One model under one watch, with a process that writes. Findings open and close: layers lose their gradient and
    get it back, and the learning rate is far too large for a while."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    options = {"chronicler": "always", "disk_budget": disk_budget, "every": 1, "activations": 10, "quiet": True}
    with undertow.watch(model, optimizer, run_dir=folder / "training", **options) as watch:
        step = 0
        while not ended.is_set():
            is_faulty, turn = step % _TURN < _FAULTY, step // _TURN
            model.is_cut = is_faulty and turn % 2 == 1
            optimizer.param_groups[0]["lr"] = 0.3 if is_faulty and turn % 2 == 0 and turn else 1e-3
            train(model, optimizer)
            step += 1
            if step % _TURN == 0:
                watch.log(turn=step // _TURN)


def sweep(folder: Path, disk_budget: int, ended: threading.Event) -> None:
    """Models that come and go under one watch."""
    with undertow.watch(run_dir=folder / "sweep", disk_budget=disk_budget, chronicler="never", quiet=True):
        while not ended.is_set():
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
            for _ in range(40):
                train(model, optimizer)
            del model, optimizer
            gc.collect()


def cycles(folder: Path, disk_budget: int, ended: threading.Event) -> None:
    """One watch after another, every eighth with a process that writes; old runs are deleted."""
    number = 0
    while not ended.is_set():
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        chronicler = "always" if number % 8 == 7 else "never"
        place = folder / f"cycle-{number}"
        with undertow.watch(model, optimizer, run_dir=place, chronicler=chronicler, every=1, quiet=True):
            for _ in range(_SHORT):
                train(model, optimizer)
        shutil.rmtree(folder / f"cycle-{number - _KEPT}", ignore_errors=True)
        number += 1


PROGRAMS = {"training": long_training, "sweep": sweep, "cycles": cycles}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    PROGRAMS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]), ended)


if __name__ == "__main__":
    main()
