"""The cost model and the simulated run of `benchmarks.scale`, in small."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scale.costs import Line, rank_cost
from benchmarks.scale.long import governed_interval, merge_all, read_long, write_long


def test_a_line_goes_through_points_that_lie_on_one() -> None:
    points = [(1, 10), (2, 10), (3, 50), (5, 20)]
    line = Line.through(points, [100 + 7 * x + 3 * y for x, y in points])
    assert line.at(10, 100) == pytest.approx(100 + 70 + 300)
    assert line.worst < 1e-6


def test_replicas_send_less_than_shards() -> None:
    replica, shard = rank_cost(20, 1), rank_cost(20, 4)
    assert 0 < replica.part_bytes < shard.part_bytes / 10


def test_every_rank_is_merged() -> None:
    _, few = merge_all(10, 3)
    _, many = merge_all(10, 5)
    assert many == 2 * few


def test_the_dearer_a_frame_the_rarer_it_is() -> None:
    assert governed_interval(1e-6, 5.0) == 1
    assert 1 < governed_interval(0.1, 5.0) < governed_interval(1.0, 5.0) <= 1000


def test_a_simulated_run_is_thinned_and_can_be_read(tmp_path: Path) -> None:
    written = write_long(tmp_path / "run", layers=40, steps=1500, every=2, budget=2_000_000)
    assert written["disk"] < written["written"]
    read = read_long(tmp_path / "run", 1500, every=2)
    assert read["tile-bytes"] == 2 * 40 * 256
    assert 0 < read["kept-frames"] < 750
    assert read["full-frames"] == 10
