"""What an x-ray step costs: one step under it beside the same step without, in turn, on a small and on a larger model.

`python -m benchmarks.source [--steps 30]`. Bars: at most 25 times a plain step of the MLP, 3 times one of the GPT.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from undertow.demos.models import Decoder, next_token_loss
from undertow.probe.autograd_graph import leaf_tensors
from undertow.probe.source.xray import XRay

BARS = {"MLP": 25.0, "GPT-like": 3.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    missed = 0
    for name, step in {"MLP": _mlp(), "GPT-like": _gpt()}.items():
        plain, seen = _measured(step, steps)
        ratio = seen / plain
        missed += ratio > BARS[name]
        times = f"plain {plain * 1e3:8.2f} ms   x-ray {seen * 1e3:8.2f} ms"
        print(f"{name:10} {times}   {ratio:5.2f}x (bar {BARS[name]:g}x)")
    return 1 if missed else 0


def _measured(step: Callable[[], None], steps: int) -> tuple[float, float]:
    """Medians of steps in turn; the first ones warm up."""
    plain: list[float] = []
    seen: list[float] = []
    for _ in range(steps + 3):
        plain.append(_seconds(step))
        began = time.perf_counter()
        with XRay(leaf_tensors) as xray:
            step()
        xray.known.clear()
        seen.append(time.perf_counter() - began)
    return statistics.median(plain[3:]), statistics.median(seen[3:])


def _seconds(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def _mlp() -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs, labels = torch.randn(64, 64), torch.randint(10, (64,))

    def step() -> None:
        loss = functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _gpt() -> Callable[[], None]:
    model = Decoder(depth=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(32, (64, 24))

    def step() -> None:
        loss = next_token_loss(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    raise SystemExit(main())
