"""What watching costs in layers, parameters, ranks and steps: small runs, and straight lines through them."""

from __future__ import annotations

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import undertow
from undertow.measure.partials import EXPONENT_BUCKETS, Moment, offsets_of
from undertow.probe.distributed.merging import Gathered
from undertow.probe.distributed.portions import Portion
from undertow.probe.distributed.rank_layout import RankLayout
from undertow.probe.distributed.rank_messages import (
    FOLD_WIDTH,
    LayerFacts,
    Measured,
    Part,
    Roster,
    SlotFacts,
    decode,
    encode,
)
from undertow.schema import STREAMS, Block, Frame, Layer, LayerGraph, LayerKind, LayerTable, RunFacts
from undertow.store.reader import RunReader
from undertow.store.writer import RunWriter
from undertow.views.tiles import tile_of

# What a frame of a distributed training holds when everything is measured, but for activations.
FRAME_STREAMS = ("gradient", "weight", "update", "optimizer", "rank", "sketch")
EXTENT = (256, 256)  # of a simulated tensor: long enough for a sketch of full length


@dataclass(frozen=True, slots=True)
class Line:
    """y = constant + Σ slope · x, by least squares of the relative error."""

    constant: float
    slopes: tuple[float, ...]
    worst: float  # largest relative error at a measured point

    @classmethod
    def through(cls, points: Sequence[Sequence[float]], values: Sequence[float]) -> Line:
        y = np.array(values)
        x = np.column_stack([np.ones(len(y)), np.array(points, float)])
        found, *_ = np.linalg.lstsq(x / y[:, None], np.ones(len(y)), rcond=None)
        worst = float(np.max(np.abs(x @ found / y - 1)))
        return cls(float(found[0]), tuple(found[1:].tolist()), worst)

    def at(self, *x: float) -> float:
        return self.constant + sum(slope * one for slope, one in zip(self.slopes, x, strict=True))


def seconds(action: Callable[[], object], repeats: int = 5) -> float:
    """Median processor time of this thread."""
    samples: list[float] = []
    for _ in range(repeats):
        start = time.thread_time()
        action()
        samples.append(time.thread_time() - start)
    return statistics.median(samples)


# -- capture --------------------------------------------------------------------------------------------------------


def capture_seconds(layers: int, width: int, steps: int = 100) -> float:
    """What the governor reckons a step costs in which gradients, weights and updates are measured, on both threads.

    It keeps no account where there is nothing to decide: so activations are left to it, and their cost is not asked.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(4, width)
    with tempfile.TemporaryDirectory(prefix="undertow-scale-") as folder:
        run_dir = Path(folder) / "run"
        with undertow.watch(model, optimizer, run_dir=run_dir, every=1, quiet=True, chronicler="never") as watch:
            for _ in range(steps):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
        return sum(watch._run.governor._cost(kind) for kind in ("always", "gradient", "weight"))


def capture() -> Line:
    sizes = [(25, 8), (100, 8), (300, 8), (25, 256), (25, 512)]
    costs = [capture_seconds(*size) for size in sizes]
    return Line.through([(layers, layers * width * width) for layers, width in sizes], costs)


# -- ranks ----------------------------------------------------------------------------------------------------------


def roster(rank: int, layers: int, shards: int) -> Roster:
    """Replicas of whole tensors, or one of so many row blocks of each."""
    rows = EXTENT[0] // shards
    extent, begin = (rows, EXTENT[1]), (rows * (rank % shards), 0)
    paths = [f"blocks.{number}.weight" for number in range(layers)]
    count = EXTENT[0] * EXTENT[1]
    facts = [
        LayerFacts(path, LayerKind.WEIGHT, place, count, "", (), True, EXTENT, "float32", "Linear")
        for place, path in enumerate(paths)
    ]
    return Roster(rank, facts, [SlotFacts(path, Portion(EXTENT, begin, extent), shards > 1) for path in paths])


def part(rank: int, layers: int, shards: int) -> Part:
    """One kind of reading. A replica sends short sketches once it has been told that a lower rank sends the rest."""
    random = np.random.default_rng(rank)
    moments = random.random((layers, len(Moment)))
    moments[:, Moment.COUNT] = EXTENT[0] * EXTENT[1] / shards
    moments[:, [Moment.NAN, Moment.POSITIVE_INFINITY, Moment.NEGATIVE_INFINITY]] = 0
    slots, flags = np.arange(layers), np.zeros(layers, np.float32)
    if rank and shards == 1:
        measured = Measured(slots, moments, folds=random.random((layers, FOLD_WIDTH)).astype(np.float32))
    else:
        length = int(offsets_of(np.full(layers, EXTENT[0] * EXTENT[1], np.int64))[-1])
        exponents = np.full((layers, EXPONENT_BUCKETS), 1)
        measured = Measured(slots, moments, exponents, random.random(length))
    return Part(rank, 0, 0, {"loss": 1.0}, slots, flags, flags, flags, {"gradients": [measured]}, has_gradient=True)


@dataclass(frozen=True, slots=True)
class RankCost:
    """Of one more rank: bytes and seconds of its part of a frame, bytes and seconds of its roster."""

    part_bytes: float
    part_seconds: float
    roster_bytes: float
    roster_seconds: float


def rank_cost(layers: int, shards: int) -> RankCost:
    rank_layout = RankLayout(LayerTable())
    rank_layout.enter(roster(0, layers, shards))
    gathered = Gathered(rank_layout.holding)
    gathered.add(0, part(0, layers, shards).kinds["gradients"][0])
    others = range(1, 4)
    rosters = [decode(encode(roster(rank, layers, shards))) for rank in others]
    held = _kept(rosters, layers, shards) / len(others)
    start = time.thread_time()
    for one in rosters:
        assert isinstance(one, Roster)
        rank_layout.enter(one)
    entering = (time.thread_time() - start) / len(others)
    gathered = Gathered(rank_layout.holding)
    gathered.add(0, part(0, layers, shards).kinds["gradients"][0])
    messages = [encode(part(rank, layers, shards)) for rank in others]
    start = time.thread_time()
    for rank, message in zip(others, messages):
        take(gathered, rank, message)
    merging = (time.thread_time() - start) / len(others)
    return RankCost(len(messages[0]), merging, held, entering)


def _kept(rosters: Sequence[object], layers: int, shards: int) -> float:
    """Bytes that stay when these ranks have introduced themselves."""
    rank_layout = RankLayout(LayerTable())
    rank_layout.enter(roster(0, layers, shards))
    tracemalloc.start()
    for one in rosters:
        assert isinstance(one, Roster)
        rank_layout.enter(one)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held


def take(gathered: Gathered, rank: int, message: bytes) -> None:
    """What a rank does with a part that has come."""
    came = decode(message)
    assert isinstance(came, Part)
    for measured in came.kinds["gradients"]:
        gathered.add(rank, measured)


# -- storage --------------------------------------------------------------------------------------------------------


def layer_table(layers: int) -> LayerTable:
    return LayerTable.of(Layer(f"blocks.{i // 10}.part{i % 10}.weight", order=i) for i in range(layers))


def blocks_of(layers: int, seed: int, streams: Sequence[str] = FRAME_STREAMS) -> dict[str, Block]:
    random, ids = np.random.default_rng(seed), np.arange(layers, dtype=np.int32)
    out: dict[str, Block] = {}
    for name in streams:
        quantities = STREAMS[name].quantities
        values: NDArray[np.float32] = random.random((len(quantities), layers * quantities[0].width), np.float32)
        for place, quantity in enumerate(quantities):
            if quantity.name.endswith(("_nonfinite_count", "_state")):
                values[place] = 0  # a run that goes on for a million steps
        out[name] = Block(name, ids, values)
    return out


def storage(sizes: Sequence[int] = (100, 1000, 3000), frames: int = 64) -> tuple[Line, Line]:
    """Bytes and seconds of a whole frame, zoom levels included, in layers."""
    sizes_written: list[float] = []
    costs: list[float] = []
    for layers in sizes:
        with tempfile.TemporaryDirectory(prefix="undertow-scale-") as folder:
            writer = RunWriter(Path(folder) / "run", RunFacts(name="scale"))
            writer.set_layers(layer_table(layers), LayerGraph())
            blocks = [blocks_of(layers, seed) for seed in range(4)]
            before, start = writer.bytes_written, time.thread_time()
            for step in range(frames):
                writer.append(Frame(step, step, float(step), {"loss": 1.0}, blocks[step % 4]))
            costs.append((time.thread_time() - start) / frames)
            sizes_written.append((writer.bytes_written - before) / frames)
            assert writer.frames_dropped == 0, writer.last_error
            writer.close()
    points = [(layers,) for layers in sizes]
    return Line.through(points, sizes_written), Line.through(points, costs)


# -- dashboard ------------------------------------------------------------------------------------------------------


def dashboard() -> tuple[Line, Line]:
    """Seconds to open a run, and to make the heatmap of all of it, in layers and in frames with numbers."""
    sizes = [(100, 1000), (400, 1000), (100, 4000), (400, 4000)]
    opened: list[float] = []
    drawn: list[float] = []
    for layers, frames in sizes:
        with tempfile.TemporaryDirectory(prefix="undertow-scale-") as folder:
            writer = RunWriter(Path(folder) / "run", RunFacts(name="scale"))
            writer.set_layers(layer_table(layers), LayerGraph())
            blocks = [blocks_of(layers, seed, ("gradient",)) for seed in range(4)]
            writer.append_many([Frame(step, step, 0.0, {"loss": 1.0}, blocks[step % 4]) for step in range(frames)])
            writer.close()
            opened.append(seconds(partial(RunReader, writer.folder)))
            reader = RunReader(writer.folder)
            level = max(0, (frames // 256).bit_length())
            drawn.append(seconds(partial(tile_of, reader, "gradient_norm", level, 0)))
    return Line.through(sizes, opened), Line.through(sizes, drawn)
