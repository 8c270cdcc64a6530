"""A run that nobody here can train: simulated, but written by the real writer and read by the real reader."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec.structs import replace as replace_part

from benchmarks.scale.costs import blocks_of, layer_table, part, roster, take
from undertow.probe.distributed.contribution import measured_of
from undertow.probe.distributed.joint import Joint
from undertow.probe.distributed.merging import Gathered
from undertow.probe.distributed.rank_layout import RankLayout
from undertow.probe.distributed.rank_messages import encode
from undertow.probe.schedule import Governor
from undertow.schema import Frame, LayerGraph, LayerTable, RunFacts, RunStatus
from undertow.store.writer import RunWriter

_TOGETHER = 256  # frames that come together when steps are short

# Reads the run in a process of its own, which has nothing of it in memory.
_READER = """
import sys, time
from pathlib import Path
from undertow.detect.engine import Engine
from undertow.store.reader import RunReader
from undertow.views.tiles import tile_of
def timed(name, action):
    start = time.perf_counter()
    result = action()
    print(name, time.perf_counter() - start, flush=True)
    return result
reader = timed("open", lambda: RunReader(Path(sys.argv[1])))
steps = len(reader.steps)
assert steps == int(sys.argv[2]), steps
timed("loss", lambda: reader.scalars("loss"))
series = timed("series", lambda: reader.series("gradient_norm", 4321 % len(reader.layers)))
print("kept-frames", int((series == series).sum()))
timed("series-again", lambda: reader.series("gradient_norm", 7))
level = max(0, (steps // 256).bit_length())
tile = timed("tile", lambda: tile_of(reader, "gradient_norm", level, 0))
print("tile-bytes", tile.codes.astype("<u2").nbytes)
timed("tile-zoomed", lambda: tile_of(reader, "gradient_norm", max(0, level - 6), 3))
print("memory", next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
engine = Engine()
engine.set_layers(reader.layers, reader.graph)
bare, full = [], []
for frame in reader.frames(reader.last_sequence - 40 * int(sys.argv[3])):
    kind = full if frame.blocks else bare
    if len(kind) < (12 if frame.blocks else 2000):
        kind.append(frame)
first, full = full[:2], full[2:]  # rules look at the first frames more closely
timed("judge-first", lambda: engine.observe_many(first))
timed("judge-full", lambda: engine.observe_many(full))
print("full-frames", len(full))
timed("judge-bare", lambda: engine.observe_many(bare))
print("bare-frames", len(bare))
"""


def governed_interval(cost: float, step_seconds: float) -> int:
    """How often the governor would measure gradients and weights at this cost of a frame."""
    governor = Governor(None)
    for _ in range(64):
        governor.spent({"gradient": cost / 2, "weight": cost / 2}, step_seconds + cost, first=False)
    return next(step for step in range(1024, 4096) if governor.plan(step).weight) - next(
        (step for step in range(1023, 0, -1) if governor.plan(step).weight), 0
    )


def join_shards(layers: int, pieces: int) -> tuple[float, float, int]:
    """A rank that passes on the shards of others with its own, one kind of reading: processor seconds to decode and
    merge their parts, seconds to make one part of it, and bytes of that part."""
    rank_layout = RankLayout(LayerTable())
    for rank in range(pieces):
        rank_layout.enter(roster(rank, layers, pieces))
    joint = Joint(rank_layout)
    own, message = part(0, layers, pieces), encode(part(1, layers, pieces))
    start = time.thread_time()
    gathered = Gathered(joint.holding)
    gathered.add(0, own.kinds["gradients"][0])
    for rank in range(1, pieces):
        take(gathered, rank, message)
    merged = time.thread_time()
    (reading,) = gathered.reading()
    size = len(encode(replace_part(own, kinds={"gradients": measured_of([reading], None)})))
    return merged - start, time.thread_time() - merged, size


def merge_all(layers: int, ranks: int) -> tuple[float, int]:
    """Processor seconds and bytes with which one rank would make a frame of so many, one kind of reading."""
    rank_layout = RankLayout(LayerTable())
    rank_layout.enter(roster(0, layers, 1))
    first = rank_layout.by_rank[0]
    # All ranks hold the same: one roster stands for all of them here. What they need is measured apart.
    rank_layout.by_rank.update({rank: replace(first, device="") for rank in range(1, ranks)})
    gathered = Gathered(rank_layout.holding)
    gathered.add(0, part(0, layers, 1).kinds["gradients"][0])
    message = encode(part(1, layers, 1))
    start = time.thread_time()
    for rank in range(1, ranks):
        take(gathered, rank, message)
    assert gathered.reading()
    assert np.isfinite(gathered.distance).all()
    return time.thread_time() - start, len(message) * (ranks - 1)


def write_long(folder: Path, layers: int, steps: int, every: int, budget: int) -> dict[str, float]:
    facts = RunFacts(name=f"{layers} layers, {steps} steps")
    writer = RunWriter(folder, facts, disk_budget=budget)
    writer.set_layers(layer_table(layers), LayerGraph())
    blocks = [blocks_of(layers, seed) for seed in range(4)]
    _peak_memory()
    before = _peak_memory()
    start, processor = time.perf_counter(), time.process_time()
    for first in range(0, steps, _TOGETHER):
        frames = [
            Frame(
                step,
                step,
                float(step),
                {"loss": 1 / (1 + step), "lr": 0.1, "step_time": 5.0},
                blocks[step // every % 4] if step % every == 0 else {},
            )
            for step in range(first, min(first + _TOGETHER, steps))
        ]
        assert writer.append_many(frames) == len(frames), writer.last_error
    wall, used = time.perf_counter() - start, time.process_time() - processor
    facts.status = RunStatus.FINISHED
    result = {"written": writer.bytes_written, "disk": writer.bytes_on_disk, "seconds": wall, "processor": used}
    writer.close()
    result["memory"] = max(0, _peak_memory() - before)
    result["files"] = sum(1 for _ in folder.rglob("*.arrows"))
    return result


def _peak_memory() -> int:
    """The most that this process has held since the last call, files that it had mapped included (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # begin anew
    return peak


def read_long(folder: Path, steps: int, every: int) -> dict[str, float]:
    command = [sys.executable, "-c", _READER, str(folder), str(steps), str(every)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: float(value) for name, value in (line.split() for line in printed.splitlines())}
