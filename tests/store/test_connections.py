"""Numbers along connections of the graph: read by connection, and by the same one after a run was resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.store.small_runs import layer_graph, layer_table

from undertow.run import open_run
from undertow.schema import Block, Frame, RunFacts
from undertow.store.writer import RunWriter


def write(folder: Path, connections: tuple[tuple[str, str], ...], first: int, values: list[float], **options) -> None:
    """Frames with a share for each connection, and twice that for its size."""
    writer = RunWriter(folder, RunFacts(), **options)
    writer.set_layers(layer_table(2), replace(layer_graph(2), connections=connections))
    for step in range(first, first + 3):
        ids = np.arange(len(connections), dtype=np.int32)
        block = Block("flow", ids, np.array([values, [2 * one for one in values]], np.float32))
        assert writer.append(Frame(step, step, 1.0 + step, {"loss": 1.0}, {"flow": block})), writer.last_error
    writer.close()


def test_a_resumed_run_numbers_its_connections_on(tmp_path: Path) -> None:
    write(tmp_path / "run", (("a", "b"), ("a", "c")), 0, [0.75, 0.25])
    write(tmp_path / "run", (("a", "d"), ("a", "b")), 3, [0.5, 0.125], resume=True)
    run = open_run(tmp_path / "run")
    assert run.graph.connections == (("a", "b"), ("a", "c"), ("a", "d"))
    np.testing.assert_array_equal(
        run.along_connections("flow_share"), [[0.75, 0.25, np.nan]] * 3 + [[0.125, np.nan, 0.5]] * 3
    )
    np.testing.assert_array_equal(run.newest_along_connections("flow_size", 1), [[0.25, np.nan, 1.0]])
    assert len(run.newest_along_connections("flow_size", 10, 4)) == 2
    assert run.quantities == []  # which are of layers
    assert all(not frame.blocks for frame in run.reader.frames())
    assert run.problems == []


def test_segments_of_unknown_connections_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "run", (("a", "b"), ("a", "c")), 0, [0.75, 0.25])
    file = tmp_path / "run" / "layers.json"
    file.write_text(file.read_text().replace('"c"', '"b"', 1).replace('"connections": [', '"other": ['))
    run = open_run(tmp_path / "run")
    assert run.along_connections("flow_share").shape == (3, 0)
    assert "layers that layers.json lacks" in run.problems[0]
