"""Vectorised functions against a plain loop over layers, with gaps and non-finite values in between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from undertow.analyze.layer_numbers import layer_numbers
from undertow.analyze.series import LayerSeries
from undertow.analyze.topology import Topology
from undertow.components.regions import Runs, _joined, _network_median, runs_of  # pyright: ignore[reportPrivateUsage]


def gappy(seed: int, steps: int = 60, layers: int = 7) -> LayerSeries:
    rng = np.random.default_rng(seed)
    values = np.exp(rng.normal(size=(steps, layers)))
    values[rng.random(values.shape) < 0.05] = 0
    values[:, 1] = np.where(rng.random(steps) < 0.1, np.nan, values[:, 1])
    recorded = rng.random(values.shape) < 0.8
    recorded[:, 2] = False
    recorded[:, 3] = True
    return LayerSeries.of([f"l{i}" for i in range(layers)], np.arange(steps) * 3, values, recorded)


@pytest.mark.parametrize("seed", range(5))
def test_numbers_of_each_layer(seed: int) -> None:
    series = gappy(seed)
    numbers = layer_numbers(series)
    for layer in range(len(series.names)):
        _, values = series.column(layer)
        finite = values[np.isfinite(values)]
        assert numbers.count[layer] == len(values)
        assert numbers.finite_count[layer] == len(finite)
        if not len(finite):
            assert np.isnan(numbers.mean[layer])
            continue
        assert numbers.mean[layer] == pytest.approx(finite.mean())
        assert numbers.std[layer] == pytest.approx(finite.std())
        assert numbers.skewness[layer] == pytest.approx(stats.skew(finite))
        assert numbers.kurtosis[layer] == pytest.approx(stats.kurtosis(finite))
        for share, got in ((5, numbers.percentile_5), (50, numbers.median), (95, numbers.percentile_95)):
            assert got[layer] == pytest.approx(np.percentile(finite, share))
        if len(finite) == len(values):
            assert numbers.flow_rate[layer] == pytest.approx(np.abs(np.diff(values)).sum() / len(values))
            bends = np.abs(np.diff(values, 2)).mean()
            assert numbers.smoothness[layer] == pytest.approx(1 / (1 + bends))
            assert numbers.slope[layer] == pytest.approx(np.polyfit(np.arange(len(values)), values, 1)[0])
            with np.errstate(divide="ignore", invalid="ignore"):
                change = np.abs(np.log(values[1:] / values[:-1]))
            change[(values[1:] == 0) & (values[:-1] == 0)] = 0
            assert numbers.consistency[layer] == pytest.approx(1 / (1 + np.median(change[np.isfinite(change)])))
        else:
            assert np.isnan(numbers.flow_rate[layer])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 5))
def test_run_lengths(flags: list[bool], gap: int) -> None:
    steps = np.arange(len(flags)) * (gap + 1)
    series = LayerSeries.of(["a"], steps, np.ones((len(flags), 1)))
    runs = runs_of(np.array(flags)[:, None], series)
    lengths: list[tuple[int, int]] = []
    for place, flag in enumerate(flags):
        if flag and place and flags[place - 1]:
            lengths[-1] = (lengths[-1][0], place)
        elif flag:
            lengths.append((place, place))
    longest = max((end - start + 1 for start, end in lengths), default=0)
    assert runs.longest[0] == longest
    assert runs.total[0] == sum(flags)
    assert runs.ended[0] == sum(end < len(flags) - 1 for _, end in lengths)
    assert runs.current[0] == (lengths[-1][1] - lengths[-1][0] + 1 if flags[-1] else 0)
    if longest:
        start, end = [run for run in lengths if run[1] - run[0] + 1 == longest][-1]
        assert (runs.longest_start[0], runs.longest_end[0]) == (steps[start], steps[end])


@pytest.mark.parametrize("layers", [1, 2, 5, 6])
def test_network_median(layers: int) -> None:
    rng = np.random.default_rng(layers)
    values = np.exp(rng.normal(size=(50, layers)))
    values[rng.random(values.shape) < 0.3] = 0
    values[:5] = 1.0
    series = LayerSeries.of(map(str, range(layers)), np.arange(50), values)
    root = np.sqrt(np.arange(1.0, layers + 1))
    rms = np.where(values > 0, values, np.nan) / root
    expected = np.array([np.nanmedian(row) if (~np.isnan(row)).any() else np.nan for row in rms])
    known = ~np.isnan(expected)
    assert _network_median(series, root)[known] == pytest.approx(expected[known])


def test_regions_are_joined_along_edges_whose_times_overlap() -> None:
    """An edge to a layer that is well says nothing of the edges after it."""
    none, start, end = np.zeros(5, np.int64), np.array([0, 5, 5, 30, 5]), np.array([9, 9, 29, 39, 9])
    runs = Runs(none, start, end, none, none, none)
    topology = Topology(tuple("abcde"), ((0, 4), (0, 1), (1, 2), (0, 2), (2, 3)), (3, 2, 1, 0, 4))
    assert _joined([0, 1, 2, 3], runs, topology) == [[3], [2, 1, 0]]
    assert _joined([0, 1, 2, 3], runs, None) == [[0], [1], [2], [3]]
