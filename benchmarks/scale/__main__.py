"""How far watching scales: a cost model with constants measured here, and one huge run, simulated.

    python -m benchmarks.scale [--layers 10000] [--ranks 4096] [--steps 1000000] [--every 1000] [--folder DIR]

Prints the model, what it says of the huge run, and what writing and reading that run through the real store took.
Needs about twice the disk budget (2 GB) of room. The ranks are simulated in one process: no network is measured.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks.scale.costs import Line, capture, dashboard, rank_cost, storage
from benchmarks.scale.long import governed_interval, join_shards, merge_all, read_long, write_long
from undertow.probe.distributed.rank_tree import branch_of


def show(name: str, line: Line, unit: str, scale: float, *axes: str) -> None:
    terms = "".join(f" + {slope * scale:.3g} × {axis}" for slope, axis in zip(line.slopes, axes, strict=True))
    print(f"  {name:34s} {line.constant * scale:.3g}{terms} {unit}   (off by {line.worst:.0%} at most)")


def ranks_model(layers: int, ranks: int) -> None:
    senders = len(branch_of(0, range(ranks)).children)
    print(f" {ranks:,} ranks form a tree: the first one receives from {senders} of them, no other one from more")
    for shards, what in ((1, "replicated (DDP)"), (4, "sharded (FSDP)")):
        sizes = (100, 400, 1200)
        costs = [rank_cost(size, shards) for size in sizes]
        points = [(size,) for size in sizes]
        print(f" {what}, one more rank, one kind of reading:")
        for name, unit, scale in (
            ("part_bytes", "bytes a frame", 1.0),
            ("part_seconds", "µs a frame where it is merged", 1e6),
            ("roster_bytes", "bytes kept there", 1.0),
            ("roster_seconds", "µs once there", 1e6),
        ):
            line = Line.through(points, [getattr(cost, name) for cost in costs])
            show(name.replace("_", " "), line, unit, scale, "layers")
            star, tree = line.at(layers) * (ranks - 1), line.at(layers) * senders
            printed = (f"{x / 1e9:,.1f} GB" if "bytes" in name else f"{x:,.1f} s" for x in (star, tree))
            print(
                "  {:34s} → {} from {:,} ranks, {} from {}".format("", next(printed), ranks - 1, next(printed), senders)
            )


def simulated(options: argparse.Namespace, folder: Path) -> None:
    steps = options.steps
    result = write_long(folder, options.layers, steps, options.every, options.budget)
    print(f"  written: {result['written'] / 1e9:.2f} GB in {result['seconds']:.0f} s ", end="")
    print(f"({result['processor']:.0f} s of processor time, {result['processor'] / steps * 1e6:.0f} µs a step)")
    print(f"  on disk: {result['disk'] / 1e9:.2f} GB in {result['files']:.0f} files ", end="")
    print(f"(budget {options.budget / 1e9:.2f} GB); the writer took up to {result['memory'] / 1e6:,.0f} MB more memory")
    read = read_long(folder, steps, options.every)
    print(f"  frames with numbers: {steps // options.every:,} written, {read['kept-frames']:,.0f} kept")
    for name, what in (
        ("open", "open, in a new process"),
        ("loss", "loss of every step"),
        ("series", "one layer over all steps, first"),
        ("series-again", "another layer"),
        ("tile", "heatmap of all layers and steps"),
        ("tile-zoomed", "heatmap, zoomed in 64 times"),
    ):
        print(f"  {what:34s} {read[name] * 1e3:10.1f} ms")
    print(f"  {'heatmap, bytes to the browser':34s} {read['tile-bytes'] / 1e6:10.1f} MB")
    print(f"  {'memory of the reader':34s} {read['memory'] / 1e6:10.0f} MB")
    full, bare = read["judge-full"] / max(1, read["full-frames"]), read["judge-bare"] / max(1, read["bare-frames"])
    print(f"  {'rules, the first two such frames':34s} {read['judge-first'] * 1e3:10.1f} ms")
    print(f"  {'rules, a frame with numbers':34s} {full * 1e3:10.1f} ms")
    print(f"  {'rules, a frame of scalars':34s} {bare * 1e3:10.3f} ms")
    print(f"  {'→ the whole diagnosis':34s} {full * read['kept-frames'] + bare * steps:10.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--layers", type=int, default=10_000)
    parser.add_argument("--parameters", type=float, default=1e12)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--every", type=int, default=1000, help="steps between frames with numbers")
    parser.add_argument("--step-seconds", type=float, default=5.0)
    parser.add_argument("--budget", type=int, default=2_000_000_000, help="bytes on disk")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: a temporary folder)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    layers, ranks = options.layers, options.ranks
    print(f"{datetime.now(UTC):%Y-%m-%d}  {platform.machine()}, one core  Python {platform.python_version()}", end="")
    print(f"  torch {torch.__version__}")
    print("capture, every step, both threads, on this processor")
    line = capture()
    show("seconds a measured step", line, "µs", 1e6, "layers", "parameters")
    shard = options.parameters / ranks
    cost = line.at(layers, shard)
    print(f"  {layers:,} layers, {options.parameters:.0e} parameters in {ranks:,} shards: {cost:.2f} s a measured step")
    interval = governed_interval(cost, options.step_seconds)
    print(f"  the governor would measure every {interval} steps of {options.step_seconds:g} s")
    print("storage, a frame with everything but activations")
    size, time_taken = storage()
    show("bytes a frame", size, "bytes", 1.0, "layers")
    show("seconds a frame", time_taken, "µs", 1e6, "layers")
    print(f"  {layers:,} layers: {size.at(layers) / 1e6:.1f} MB and {time_taken.at(layers) * 1e3:.1f} ms a frame")
    written = size.at(layers) * options.steps / interval
    days = options.steps * options.step_seconds / 86_400
    print(f"  every {interval} steps: {written / 1e9:,.0f} GB written in {days:.0f} days, thinned to the budget")
    print("dashboard, a processor's time")
    opened, drawn = dashboard()
    show("open a run", opened, "µs", 1e6, "layers", "frames")
    show("heatmap of the whole run", drawn, "µs", 1e6, "layers", "frames")
    print("ranks")
    ranks_model(layers, ranks)
    taken, moved = merge_all(layers, ranks)
    print(f" {ranks:,} replicas × {layers:,} layers merged for real at one rank: {taken:.1f} s, {moved / 1e9:.1f} GB")
    merging, making, size = join_shards(layers, 32)
    print(f" 32 shards × {layers:,} layers joined for real: {merging:.1f} s to merge, {making:.1f} s to make ", end="")
    print(f"one part of them, {size / 1e9:.2f} GB")
    print(f"a run of {options.steps:,} steps × {layers:,} layers, numbers every {options.every} steps")
    root = Path(tempfile.mkdtemp(prefix="undertow-scale-", dir=options.folder))
    try:
        simulated(options, root / "run")
    finally:
        shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
