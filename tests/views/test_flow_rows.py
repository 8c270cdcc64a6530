"""Modules as rows: in order, with tied weights, in groups where they are many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.store.small_runs import layer_graph

from undertow.run import Run
from undertow.schema import STREAMS, Block, Frame, GraphNode, GraphSource, Layer, LayerGraph, LayerTable, RunFacts
from undertow.store.writer import RunWriter
from undertow.views.flow_rows import flow_rows
from undertow.views.palette import Cell

GRADIENT = STREAMS["gradient"].names


def write(folder: Path, layers: list[Layer], graph: LayerGraph, norms: list[list[float]]) -> Run:
    writer = RunWriter(folder, RunFacts(name="flow"))
    writer.set_layers(LayerTable.of(layers), graph)
    for step, row in enumerate(norms):
        values = np.full((len(GRADIENT), len(layers)), np.nan, np.float32)
        values[GRADIENT.index("gradient_norm")] = row
        values[GRADIENT.index("gradient_state")] = values[GRADIENT.index("gradient_nonfinite_count")] = 0
        block = Block("gradient", np.arange(len(layers), dtype=np.int32), values)
        assert writer.append(Frame(step, step, float(step), {}, {"gradient": block}))
    writer.close()
    return Run(folder)


def test_norms_of_a_module_add_up_by_squares_without_overflow(tmp_path: Path) -> None:
    layers = [Layer("a.weight", order=0), Layer("a.bias", order=0), Layer("b.weight", order=1)]
    run = write(tmp_path / "run", layers, layer_graph(0), [[3.0, 4.0, 1.0], [3e30, 4e30, 1e-30]] * 5)
    grid = flow_rows(run, (0, 9), 10, 40).grid
    assert grid.rows == ("a", "b")
    assert grid.values[0, :2] == pytest.approx([5.0, 5e30], rel=0.01)
    assert grid.values[1, 1] == pytest.approx(1e-30, rel=0.01)


def test_a_module_with_tied_weights_shows_their_gradient_where_it_runs(tmp_path: Path) -> None:
    layers = [
        Layer("tokens.weight", order=0, group="tokens", shared_with=("head.weight",)),
        Layer("body.weight", order=1, group="body"),
    ]
    nodes = tuple(GraphNode(place, name) for place, name in enumerate(("tokens", "body", "head")))
    graph = LayerGraph(nodes, ((0, 1), (1, 2)), GraphSource.AUTOGRAD)
    found = flow_rows(write(tmp_path / "run", layers, graph, [[2.0, 1.0]] * 10), (0, 9), 10, 40)
    assert [row.name for row in found.rows] == ["tokens", "body", "head"]
    assert (found.grid.cells == Cell.VALUE).all()
    assert found.grid.values[2, 0] == pytest.approx(2.0)
    assert (0, 1) in {(link.start, link.end) for link in found.links}


def test_many_modules_are_put_together_by_path_and_links_between_groups_stay(tmp_path: Path) -> None:
    names = [f"blocks.{block}.{part}" for block in range(8) for part in ("attn", "mlp")]
    layers = [Layer(f"{name}.weight", order=order, group=name) for order, name in enumerate(names)]
    nodes = tuple(GraphNode(place, name) for place, name in enumerate(names))
    graph = LayerGraph(nodes, tuple((place, place + 1) for place in range(15)), GraphSource.AUTOGRAD)
    run = write(tmp_path / "run", layers, graph, [[1.0] * 16] * 10)
    found = flow_rows(run, (0, 9), 10, 8)
    assert [row.name for row in found.rows] == [f"blocks.{block} (2 modules)" for block in range(8)]
    assert {(link.start, link.end) for link in found.links} == {(place, place + 1) for place in range(7)}
    assert found.grid.values[0, 0] == pytest.approx(2**0.5, rel=0.01)
    fewer = flow_rows(run, (0, 9), 10, 6)
    assert [row.name for row in fewer.rows] == [f"blocks.{b} … blocks.{b + 1} (4 modules)" for b in range(0, 8, 2)]
    assert [row.name for row in flow_rows(run, (0, 9), 10, 40, ["blocks.3.*"]).rows] == [
        "blocks.3.attn",
        "blocks.3.mlp",
    ]
