"""Run folders that a page has to cope with."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.schema import Block, Frame, GraphNode, GraphSource, Layer, LayerGraph, LayerTable, RunFacts, RunStatus
from undertow.schema.quantities import STORED_HISTOGRAM_WIDTH, STREAMS
from undertow.store.writer import RunWriter

GRADIENT = STREAMS["gradient"].names
PARTS = ("attn.q.weight", "attn.k.weight", "attn.v.weight", "attn.o.weight", "mlp.up.weight", "mlp.down.weight")
SCRIPT = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"


def sick_run(folder: Path) -> Path:
    hit = {"first": 3.0, "second": 5.0}
    training = Training().run(30)
    training.run(20, gradient_nonfinite_count=hit, gradient_norm=dict.fromkeys(hit, float("nan")))
    return write(folder, training, name="sick one")


def spread_run(folder: Path) -> Path:
    """Quantiles and drift of every weight."""
    spread = {"gradient_abs_p05": 0.01, "gradient_abs_p50": 0.1, "gradient_abs_p95": 1.0, "gradient_max_abs": 3.0}
    drift = {"weight_drift": 0.2, "weight_cosine_to_start": 0.9, "weight_mean": 0.0, "weight_std": 0.1}
    return write(folder, Training().run(20, **spread, **drift), name="spread")


def histogram_run(folder: Path, silent_from: int | None = None) -> Path:
    """Three quarters of every tensor from 1/8 to 1/4, the rest from 1/2 to 1; counted at every eighth step."""
    training = Training().run(
        20, gradient_abs_p05=0.13, gradient_abs_p50=0.2, gradient_abs_p95=0.9, gradient_max_abs=1.0
    )
    parameters = np.array([layer.id for layer in training.layers.parameters], np.int32)
    histogram = np.zeros((len(parameters), STORED_HISTOGRAM_WIDTH), np.float32)
    histogram[:, 0] = -31
    histogram[:, 1 + 31 - 3] = 0.75
    histogram[:, 1 + 31 - 1] = 0.25
    values = np.stack([histogram.ravel(), np.full(histogram.size, np.nan, np.float32)])
    for frame in training.frames[::8]:
        is_silent = silent_from is not None and frame.step >= silent_from  # as when nothing is finite any more
        frame.blocks["histogram"] = Block(
            "histogram", parameters, np.full_like(values, np.nan) if is_silent else values
        )
    return write(folder, training, name="histograms")


def hostile_run(folder: Path) -> Path:
    names = (SCRIPT, "\u202egnidaelsim", "n" * 10_000, "head")
    return write(folder, Training(*names).run(5), name=f"{SCRIPT} \u202eeman")


class Deep:
    """A run of many layers that is written as slowly as one likes."""

    def __init__(self, folder: Path, blocks: int) -> None:
        self.paths = [f"blocks.{block}.{part}" for block in range(blocks) for part in PARTS]
        facts = RunFacts(
            undertow="0.1.0", name=folder.name, created=time.time(), process=os.getpid(), host=socket.gethostname()
        )
        self.facts = facts
        self.writer = RunWriter(folder, facts)
        layers = [Layer(path, order=i, group=path.rpartition(".")[0]) for i, path in enumerate(self.paths)]
        self.writer.set_layers(LayerTable.of(layers), LayerGraph())
        self.random = np.random.default_rng(0)
        self.step = 0

    def write(self, steps: int) -> None:
        count = len(self.paths)
        for _ in range(steps):
            values = np.full((len(GRADIENT), count), np.nan, np.float32)
            values[GRADIENT.index("gradient_nonfinite_count")] = 0
            values[GRADIENT.index("gradient_state")] = 0
            values[GRADIENT.index("gradient_cosine")] = self.random.uniform(-1, 1, count)
            norms = 10 ** (np.linspace(-4, 0, count) + 0.2 * self.random.normal(size=count))
            values[GRADIENT.index("gradient_norm")] = norms
            block = Block("gradient", np.arange(count, dtype=np.int32), values)
            scalars = {"loss": 2.0 / (1 + self.step / 100), "lr": 1e-3}
            assert self.writer.append(Frame(self.step, self.step, time.time(), scalars, {"gradient": block}))
            self.step += 1

    def finish(self) -> None:
        self.facts.status = RunStatus.FINISHED
        self.writer.write_facts()
        self.writer.close()


def deep_run(folder: Path, blocks: int = 20, steps: int = 1500) -> None:
    run = Deep(folder, blocks)
    run.write(steps)
    run.finish()


def sparse_run(folder: Path) -> Path:
    """A hundred steps, of which the first ten and one in the middle were sampled: all norms equal."""
    facts = RunFacts(undertow="0.1.0", name="sparse")
    writer = RunWriter(folder, facts)
    modules = ("first", "second", "third")
    table = LayerTable.of(Layer(f"{path}.weight", order=place, group=path) for place, path in enumerate(modules))
    nodes = tuple(GraphNode(place, path) for place, path in enumerate(modules))
    writer.set_layers(table, LayerGraph(nodes, ((0, 1), (1, 2)), GraphSource.AUTOGRAD))
    values = np.full((len(GRADIENT), len(modules)), np.nan, np.float32)
    values[[GRADIENT.index("gradient_nonfinite_count"), GRADIENT.index("gradient_state")]] = 0
    values[GRADIENT.index("gradient_norm")] = 0.1
    block = Block("gradient", np.arange(len(modules), dtype=np.int32), values)
    for step in range(100):
        blocks = {"gradient": block} if step < 10 or step == 50 else {}
        assert writer.append(Frame(step, step, 1.7e9 + 3.0 * step, {"loss": 1.0}, blocks))
    facts.status = RunStatus.FINISHED
    writer.write_facts()
    writer.close()
    return folder
