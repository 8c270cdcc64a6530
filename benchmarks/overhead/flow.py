"""What shares of gradient along connections cost: `python -m benchmarks.overhead.flow`.

A residual network in which every block is a fork of two uses. Passes with and without the measurement take turns, so
that both see the same machine; what a watched training then spends within its budget is measured on a real one.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import undertow
from undertow.probe.autograd_graph import Owner
from undertow.probe.flow_shares import FlowShares
from undertow.probe.watched_layers import WatchedLayers

BLOCKS, ROUNDS = 24, 9
SIZES = ((32, 64), (64, 512), (256, 1024))  # rows × features of the value that is shared


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.inner(self.norm(x)))


def network(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), *(Block(width) for _ in range(BLOCKS)), nn.Linear(width, 8))


def seconds(rows: int, width: int) -> tuple[float, float, float, int]:
    """Of a backward pass; of reading the graph before it; of the hooks in it, and for how many edges."""
    model, x = network(width), torch.randn(rows, width)
    layers = WatchedLayers(None, None)
    layers.owners = {id(one): (Owner(name.rpartition(".")[0]),) for name, one in model.named_parameters()}
    shares = FlowShares(layers)
    plain: list[float] = []
    before: list[float] = []
    inside: list[float] = []
    edges = 0
    for _ in range(ROUNDS):
        for measured in (False, True):
            loss = model(x).square().mean()
            began = time.perf_counter()
            if measured:
                shares.begin([loss])
                before.append(time.perf_counter() - began)
            began = time.perf_counter()
            loss.backward()
            if measured:
                inside.append(shares.end())
                reading = shares.take()
                assert reading is not None
                edges = 2 * len(reading.grams)
            else:
                plain.append(time.perf_counter() - began)
    return statistics.median(plain), statistics.median(before), statistics.median(inside), edges


def watched(with_shares: bool) -> tuple[int, int, float | None]:
    """Steps of a real training with default settings, how many of them measured shares, and its overhead."""
    model = network(256)
    optimizer = torch.optim.Adam(model.parameters())
    begin = FlowShares.begin
    with tempfile.TemporaryDirectory() as folder:
        FlowShares.begin = begin if with_shares else lambda self, roots: None
        try:
            with undertow.watch(model, optimizer, run_dir=Path(folder) / "run", quiet=True):
                for _ in range(400):
                    optimizer.zero_grad()
                    model(torch.randn(64, 256)).square().mean().backward()
                    optimizer.step()
        finally:
            FlowShares.begin = begin
        run = undertow.open_run(Path(folder) / "run")
        shares = run.along_connections("flow_share") if run.graph.connections else np.empty((0, 0))
        return len(run.steps), int((~np.isnan(shares)).any(axis=1).sum()), run.diagnose().overhead.fraction_of_step


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{BLOCKS} residual blocks, {2 * BLOCKS} edges at forks; medians of {ROUNDS} passes, one thread")
    print("value          backward   graph before it    hooks in it   edges   an edge in hooks   of a backward pass")
    for rows, width in SIZES:
        plain, before, inside, edges = seconds(rows, width)
        print(f"{rows:4} × {width:4}  {1e3 * plain:8.2f} ms {1e3 * before:12.2f} ms {1e3 * inside:12.2f} ms {edges:7}"
              f" {1e6 * inside / edges:15.1f} µs {(before + inside) / plain:18.1%}")  # fmt: skip
    for with_shares in (True, False, True, False):
        steps, samples, fraction = watched(with_shares)
        shown = "not known" if fraction is None else f"{fraction:.2%}"
        print(f"default settings: {samples:3} of {steps} steps measured shares; watching took {shown} of the steps")


if __name__ == "__main__":
    main()
