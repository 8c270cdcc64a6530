"""Distributions over steps: counted at histogram frames, interpolated between quantiles elsewhere, and labelled."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from tests.browser.runs import histogram_run, spread_run
from tests.cli.conftest import write
from tests.detect.building import Training

from undertow.run import open_run
from undertow.show.page.densities import densities
from undertow.views.density import density_of


def test_histograms_hold_until_the_next_one(tmp_path: Path) -> None:
    reader = open_run(histogram_run(tmp_path / "run")).reader
    found = density_of(reader, "gradient", 0, 0, 19, 100)
    assert found.is_measured
    assert found.steps.tolist() == [0, 8, 16]
    assert found.ends.tolist() == [7, 15, 19]
    assert found.low == -3
    assert found.shares.tolist() == [[0.75, 0.0, 0.25]] * 3


def test_a_span_begins_with_the_histogram_before_it(tmp_path: Path) -> None:
    reader = open_run(histogram_run(tmp_path / "run")).reader
    assert density_of(reader, "gradient", 0, 10, 12, 100).steps.tolist() == [8]
    assert density_of(reader, "gradient", 0, 0, 19, 2).steps.tolist() == [0, 16]


def test_a_histogram_ends_where_the_next_one_has_nothing_to_tell(tmp_path: Path) -> None:
    folder = histogram_run(tmp_path / "run", silent_from=8)
    found = density_of(open_run(folder).reader, "gradient", 0, 0, 19, 100)
    assert found.steps.tolist() == [0]
    assert found.ends.tolist() == [7]


def test_without_histograms_shares_lie_evenly_between_quantiles(tmp_path: Path) -> None:
    reader = open_run(spread_run(tmp_path / "run")).reader  # 5 %: 0.01, median 0.1, 95 %: 1, largest 3
    found = density_of(reader, "gradient", 0, 0, 19, 100)
    assert not found.is_measured
    edges = found.low + np.arange(found.shares.shape[1])
    shares = found.shares[0]
    assert shares.sum() == pytest.approx(0.95, abs=1e-5)
    assert shares[edges >= 0].sum() == pytest.approx(0.05, abs=1e-5)  # 2^0 is the 95th percentile
    inside = shares[(edges > np.log2(0.01)) & (edges + 1 < np.log2(0.1))]
    assert inside == pytest.approx(0.45 / np.log2(10), abs=1e-5)


def test_quantiles_of_zero_tell_nothing(tmp_path: Path) -> None:
    nothing = {f"gradient_{part}": 0.0 for part in ("abs_p05", "abs_p50", "abs_p95", "max_abs")}
    reader = open_run(write(tmp_path / "run", Training().run(5, **nothing))).reader
    assert not len(density_of(reader, "gradient", 0, 0, 4, 100).steps)


def test_a_page_carries_shares_in_bytes(tmp_path: Path) -> None:
    run = open_run(histogram_run(tmp_path / "run"))
    [packed] = densities(run, 100_000)  # no weights were counted
    facts = packed.facts
    cells = np.frombuffer(gzip.decompress(packed.data), np.uint8)
    cells = cells.reshape(len(facts["layers"]), len(facts["steps"]), facts["width"])
    assert facts["steps"] == [0, 8, 16]
    assert int(cells[0, 0, 0]) - 127 == -31
    shares = (cells[0, 0, 1:] / 255.0) ** 2
    assert shares[31 - 3] == pytest.approx(0.75, abs=0.01)
    assert shares[31 - 1] == pytest.approx(0.25, abs=0.01)
    assert densities(run, 10) == []
