"""Small runs for the tests of the store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from undertow.schema import STREAMS, Block, Frame, GraphNode, GraphSource, Layer, LayerGraph, LayerTable, RunFacts
from undertow.store.writer import RunWriter


def layer_table(count: int) -> LayerTable:
    return LayerTable.of(Layer(f"blocks.{i}.weight", order=i, shape=(3, i), shared_with=()) for i in range(count))


def layer_graph(count: int) -> LayerGraph:
    nodes = tuple(GraphNode(i, f"blocks.{i}") for i in range(count))
    return LayerGraph(nodes, tuple((i, i + 1) for i in range(count - 1)), GraphSource.AUTOGRAD)


def block(stream: str, layer_ids: list[int], seed: int = 0) -> Block:
    """Values that differ everywhere, so that a row read from the wrong place cannot go unnoticed."""
    quantities = STREAMS[stream].quantities
    shape = (len(quantities), len(layer_ids) * quantities[0].width)
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return Block(stream, np.array(layer_ids, np.int32), values)


def frame(sequence: int, layers: int, *, step: int | None = None, streams: tuple[str, ...] = ("gradient",)) -> Frame:
    blocks = {name: block(name, list(range(layers)), sequence) for name in streams}
    step = sequence if step is None else step
    return Frame(sequence, step, 1e9 + sequence, {"loss": 1.0 / (1 + sequence)}, blocks)


def new_writer(folder: Path, layers: int = 3, **options: object) -> RunWriter:
    writer = RunWriter(folder, RunFacts(name="test"), **options)  # type: ignore[arg-type]
    if len(writer.layers) < layers:
        writer.set_layers(layer_table(layers), layer_graph(layers))
    return writer


def same_bits(first: NDArray[np.generic], second: NDArray[np.generic]) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


def assert_same_frame(found: Frame, expected: Frame) -> None:
    assert (found.sequence, found.step, found.time) == (expected.sequence, expected.step, expected.time)
    assert found.scalars.keys() == expected.scalars.keys()
    for name, value in expected.scalars.items():
        assert same_bits(np.array(found.scalars[name]), np.array(value, np.float64)), name
    assert found.blocks.keys() == expected.blocks.keys()
    for name, expected_block in expected.blocks.items():
        assert same_bits(found.blocks[name].layer_ids, expected_block.layer_ids)
        assert same_bits(found.blocks[name].values, expected_block.values), name
