"""What the run store costs: CPU per frame, time to open a long run, time to read from it.

    python -m benchmarks.store [--steps 1000000] [--layers 1000] [--folder DIR]

Bars: at most 100 µs of CPU per frame of 1,000 layers × 8 quantities, zoom levels included; a run of
a million steps × 1,000 layers opens in under a second. Exits with 1 when one is missed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from undertow.schema import Block, Frame, Layer, LayerGraph, LayerTable, RunFacts
from undertow.schema.quantities import QUANTITIES, STREAMS, Merge, Quantity, Stream
from undertow.store.reader import RunReader
from undertow.store.writer import RunWriter

APPEND_BAR = 100e-6
OPEN_BAR = 1.0
NAME = "bench"


def register_stream(quantities: int) -> None:
    """A stream of exactly as many quantities as the bar speaks of."""
    stream = Stream(
        NAME,
        covers_modules=False,
        quantities=tuple(Quantity(f"{NAME}_{i}", NAME, "1", "noise", Merge.SUM, "noise") for i in range(quantities)),
    )
    STREAMS[NAME] = stream
    QUANTITIES.update({quantity.name: quantity for quantity in stream.quantities})


def new_writer(folder: Path, layers: int, *, zoom: bool = True, disk_budget: int | None = None) -> RunWriter:
    writer = RunWriter(folder, RunFacts(name="benchmark"), zoom=zoom, disk_budget=disk_budget)
    writer.set_layers(LayerTable.of(Layer(f"blocks.{i}.weight") for i in range(layers)), LayerGraph())
    return writer


def cpu_per_append(root: Path, layers: int, rounds: int = 7, frames: int = 1024) -> dict[str, tuple[float, float]]:
    """Median CPU seconds per frame (user and system), and wall seconds, with and without zoom levels, in turn."""
    layer_ids = np.arange(layers, dtype=np.int32)
    random = np.random.default_rng(0)
    shape = (len(STREAMS[NAME].quantities), layers)
    blocks = [Block(NAME, layer_ids, random.normal(size=shape).astype(np.float32)) for _ in range(64)]
    for one in blocks[::4]:
        one.values[0, ::7] = np.nan  # some quantities are not measured in every frame
    scalars = {"loss": 1.0, "lr": 0.1, "step_time": 0.01}
    measured: dict[str, list[tuple[float, float]]] = {"with zoom": [], "without zoom": []}
    for number in range(rounds):
        for name, samples in measured.items():
            folder = root / f"append-{number}-{name.replace(' ', '-')}"
            writer = new_writer(folder, layers, zoom=name == "with zoom")
            prepared = [Frame(i, i, float(i), scalars, {NAME: blocks[i % 64]}) for i in range(frames)]
            cpu, wall = time.process_time(), time.perf_counter()
            for frame in prepared:
                writer.append(frame)
            samples.append(((time.process_time() - cpu) / frames, (time.perf_counter() - wall) / frames))
            assert writer.frames_dropped == 0
            writer.close()
            shutil.rmtree(folder)
    return {
        name: (statistics.median(cpu for cpu, _ in samples), statistics.median(wall for _, wall in samples))
        for name, samples in measured.items()
    }


def build_long_run(folder: Path, steps: int, layers: int, budget: int) -> RunWriter:
    """Scalars at every step and a block at every 8th, as the governor may choose, within a disk budget."""
    layer_ids = np.arange(layers, dtype=np.int32)
    random = np.random.default_rng(0)
    shape = (len(STREAMS[NAME].quantities), layers)
    blocks = [Block(NAME, layer_ids, random.normal(size=shape).astype(np.float32)) for _ in range(64)]
    writer = new_writer(folder, layers, disk_budget=budget)
    for step in range(steps):
        block = {NAME: blocks[(step // 8) % 64]} if step % 8 == 0 else {}
        writer.append(Frame(step, step, float(step), {"loss": 1.0 / (1 + step), "lr": 0.1, "step_time": 0.01}, block))
    assert writer.frames_dropped == 0, writer.last_error
    return writer


def seconds(action: Callable[[], object], repeats: int = 5) -> float:
    """Median wall time."""
    samples: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def open_in_new_process(folder: Path) -> float:
    """The first opening in a process that has read nothing of the run, imports left out."""
    code = (
        "import sys, time; from pathlib import Path; from undertow.store.reader import RunReader\n"
        "start = time.perf_counter(); reader = RunReader(Path(sys.argv[1])); len(reader.steps)\n"
        "print(time.perf_counter() - start)"
    )
    command = [sys.executable, "-c", code, str(folder)]
    return statistics.median(
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(3)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=1_000)
    parser.add_argument("--quantities", type=int, default=8)
    parser.add_argument("--budget", type=int, default=1 << 30, help="bytes on disk of the long run")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: a temporary folder)")
    options = parser.parse_args()
    register_stream(options.quantities)
    root = Path(tempfile.mkdtemp(prefix="undertow-store-", dir=options.folder))
    missed = False
    try:
        print(f"append, {options.layers} layers × {options.quantities} quantities")
        for name, (cpu, wall) in cpu_per_append(root, options.layers).items():
            print(f"  {name:13s} {cpu * 1e6:7.1f} µs CPU per frame   {wall * 1e6:7.1f} µs wall")
            missed |= cpu > APPEND_BAR
        print(f"  bar           {APPEND_BAR * 1e6:7.1f} µs CPU")
        start = time.perf_counter()
        writer = build_long_run(root / "long", options.steps, options.layers, options.budget)
        built = time.perf_counter() - start
        files = sum(1 for path in (root / "long").rglob("*.arrows") if path.is_file())
        print(f"long run, {options.steps:,} steps × {options.layers} layers: {writer.bytes_on_disk / 1e6:,.0f} MB in")
        print(f"  {files} files after {writer.bytes_written / 1e6:,.0f} MB written in {built:.0f} s")
        writer.close()
        opened = open_in_new_process(root / "long")
        print(f"  open            {opened * 1e3:9.1f} ms   (bar {OPEN_BAR * 1e3:.0f} ms)")
        missed |= opened > OPEN_BAR
        reader = RunReader(root / "long")
        quantity = f"{NAME}_3"
        first = seconds(lambda: reader.series(quantity, options.layers // 2), 1)
        print(f"  one series      {first * 1e3:9.1f} ms first, ", end="")
        print(f"{seconds(lambda: reader.series(quantity, 7)) * 1e3:.1f} ms again")
        last = options.steps - 1
        for ids, what in (([7], "1 layer"), (None, "all layers")):
            first = seconds(lambda ids=ids: reader.window(quantity, 0, last, 2000, ids), 1)
            again = seconds(lambda ids=ids: reader.window(quantity, 0, last, 2000, ids), 3)
            rows = len(reader.window(quantity, 0, last, 2000, [7]).steps)
            print(f"  window, {rows} rows, {what:10s} {first * 1e3:9.1f} ms first, {again * 1e3:.1f} ms again")
        print(f"  loss            {seconds(lambda: reader.scalars('loss')) * 1e3:9.1f} ms")
    finally:
        shutil.rmtree(root)
    print("a bar was missed" if missed else "every bar is met")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
