"""What judging weights costs: Undertow beside weightwatcher, on the same models, in one process.

`python -m benchmarks.weights [--rounds N]`

Both tools take turns; medians are compared. `undertow.weights` gives everything it has, `shared` only what
weightwatcher gives too: norm, spectral norm, stable rank, exponent of the tail. The models have about ten million
parameters with heavy-tailed weights, in layers of several widths: up to 512, Undertow computes all singular values,
too; above, it estimates the exponent. It works on a tensor per core; weightwatcher has its turn with one thread and
with as many as its libraries take, and the better median counts. Seconds of processor time are printed beside: they
depend less on a busy machine. So is the largest difference of the answers. The bar is ten times as fast, for every
width.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.environment import BESIDE_WEIGHTWATCHER

BAR = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how many times each tool has its turn")
    arguments = parser.parse_args()
    if not BESIDE_WEIGHTWATCHER.is_this:
        BESIDE_WEIGHTWATCHER.prepare()
        return BESIDE_WEIGHTWATCHER.call("benchmarks.weights", *sys.argv[1:])
    return _measure(arguments.rounds)


def _models() -> dict[str, Any]:
    import torch
    from torch import nn

    torch.manual_seed(0)

    def block(width: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def heavy(model: nn.Sequential) -> nn.Sequential:
        """Inputs of very different importance: squares of singular values with a tail exponent of about 2.5."""
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter *= torch.rand(parameter.shape[1]) ** (-1 / 3)
        return model

    blocks = {256: 12, 512: 3, 1024: 1}
    models = {
        f"width {width:,}": heavy(nn.Sequential(*(block(width) for _ in range(blocks[width])))) for width in blocks
    }
    wide = nn.Sequential(nn.Linear(784, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 10))
    return models | {"width 2,048": heavy(wide)}


def _measure(rounds: int) -> int:
    warnings.simplefilter("ignore")
    import weightwatcher
    from threadpoolctl import threadpool_limits

    import undertow

    def alone(model: Any) -> Any:
        with threadpool_limits(1):
            return weightwatcher.WeightWatcher(model=model).analyze()

    logging.disable(logging.CRITICAL)  # weightwatcher tells what it does at length
    faster: dict[str, float] = {}
    for name, model in _models().items():
        tools: dict[str, Callable[[], Any]] = {
            "undertow.weights": lambda model=model: undertow.weights(model),
            "undertow, shared": lambda model=model: _shared(model),
            "weightwatcher": lambda model=model: weightwatcher.WeightWatcher(model=model).analyze(),
            "weightwatcher, one thread": lambda model=model: alone(model),
        }
        seconds: dict[str, list[float]] = {tool: [] for tool in tools}
        processor: dict[str, list[float]] = {tool: [] for tool in tools}
        answers: dict[str, Any] = {}
        for _ in range(rounds):
            for tool, call in tools.items():
                start, spent = time.perf_counter(), time.process_time()
                with contextlib.redirect_stdout(io.StringIO()):
                    answers[tool] = call()
                seconds[tool].append(time.perf_counter() - start)
                processor[tool].append(time.process_time() - spent)
        size = sum(parameter.numel() * 4 for parameter in model.parameters())
        print(f"\n{name}: {size / 4e6:.1f} million parameters, medians of {rounds}")
        theirs = min(median(seconds["weightwatcher"]), median(seconds["weightwatcher, one thread"]))
        for tool, taken in seconds.items():
            ours = median(taken)
            ratio = "" if tool.startswith("weightwatcher") else f"{theirs / ours:6.1f} × as fast as weightwatcher"
            spent = f"({median(processor[tool]):7.3f} s of processors)"
            print(f"  {tool:26} {ours:7.3f} s  {spent}  {ours / size * 1e9:6.1f} s per GB  {ratio}")
        faster[name] = theirs / median(seconds["undertow, shared"])
        _compare(answers["undertow, shared"], answers["weightwatcher"])
    load = os.getloadavg()[0]
    print(f"\nshared statistics, times as fast (the bar is {BAR:.0f}); load {load:.1f} on {os.cpu_count()} cores:")
    print("  " + ", ".join(f"{name}: {ratio:.1f}" for name, ratio in faster.items()))
    return 0 if min(faster.values()) >= BAR else 1


def _shared(model: Any) -> dict[str, Any]:
    """Norm, spectral norm, stable rank and exponent, for the matrices that weightwatcher looks at."""
    import numpy as np

    from undertow.analyze.one_thread import one_thread
    from undertow.analyze.spectrum import spectrum
    from undertow.checkpoints import Entry, open_checkpoint
    from undertow.checkpoints.bounded_pool import in_turn

    def take(entry: Entry) -> Any:
        elements = entry.load()
        values = elements.widen(elements.matrix)
        norm, reach = float(np.linalg.norm(values)), float(max(values.max(), -values.min()))
        return spectrum(elements, norm, reach)

    entries = [entry for entry in open_checkpoint(model).entries if len(entry.shape) == 2 and min(entry.shape) >= 50]
    with one_thread():
        turns = list(in_turn(entries, lambda entry: entry.bytes, take, os.cpu_count() or 1))
    return {entry.path.removesuffix(".weight"): found for entry, found in turns}


def _compare(ours: dict[str, Any], theirs: Any) -> None:
    """How far the answers are apart, in the worst layer."""
    worst = {"spectral norm": 0.0, "stable rank": 0.0, "exponent, exact": 0.0, "exponent, randomised": 0.0}
    for row in theirs.to_dict("records"):
        found = ours.get(row["longname"])
        if found is None:
            continue
        pairs = {
            "spectral norm": (found.spectral_norm**2, row["spectral_norm"]),
            "stable rank": (found.stable_rank, row["stable_rank"]),
            f"exponent, {found.method}": (found.tail_exponent, row["alpha"]),
        }
        for statistic, (one, other) in pairs.items():
            worst[statistic] = max(worst[statistic], abs(one / other - 1))
    print("  largest difference: " + ", ".join(f"{name} {value:.1e}" for name, value in worst.items() if value))


if __name__ == "__main__":
    sys.exit(main())
