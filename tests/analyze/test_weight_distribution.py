"""Moments, entropy, outliers and units of one tensor, against numpy and scipy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from undertow.analyze.tensor_weights import describe, pool
from undertow.analyze.weight_distribution import measure, outliers
from undertow.analyze.weight_units import outlier_rows, units
from undertow.checkpoints.elements import Elements
from undertow.schema.checkpoints import Moments

RANDOM = np.random.default_rng(7)


def elements(array: NDArray[np.float64] | list[float], dtype: str = "float64") -> Elements:
    values = np.asarray(array, dtype)
    return Elements(np.ascontiguousarray(values), dtype)


def moments(array: NDArray[np.float64] | list[float], dtype: str = "float64") -> Moments:
    return measure(elements(array, dtype)).moments


SHAPES = {
    "matrix": RANDOM.normal(0.3, 0.1, (130, 70)),
    "one long row": RANDOM.gamma(2.0, 1.0, (1, 30_000)),
    "many short rows": RANDOM.standard_t(5, (20_000, 2)),
    "convolution": RANDOM.uniform(-1, 3, (8, 4, 3, 3)),
    "tiny": RANDOM.normal(0, 1e-30, 5000),
    "huge": RANDOM.normal(1e30, 1e29, 5000),
    "far from zero": RANDOM.normal(1e6, 1.0, 5000),
    "two": np.array([1.0, 2.0]),
}


@pytest.mark.parametrize("name", list(SHAPES))
def test_moments_against_scipy(name: str) -> None:
    array = SHAPES[name]
    got = moments(array)
    flat = array.reshape(-1)
    assert (got.count, got.nonfinite_count) == (flat.size, 0)
    assert (got.minimum, got.maximum) == (flat.min(), flat.max())
    np.testing.assert_allclose(got.mean, flat.mean(), rtol=1e-12, atol=1e-14 * np.abs(flat).max())
    np.testing.assert_allclose(got.std, flat.std(), rtol=1e-9)
    np.testing.assert_allclose(got.skewness, stats.skew(flat), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(got.kurtosis, stats.kurtosis(flat), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(got.norm, np.linalg.norm(flat), rtol=1e-12)
    share = np.histogram(flat, 64)[0] / flat.size
    np.testing.assert_allclose(got.entropy_bits, stats.entropy(share, base=2), atol=0.02)


def test_many_equal_numbers_add_up() -> None:
    """Where sequential float32 sums of the original stop at 16,777,216 and give 465.3 for 447.2."""
    count = 20_000_000
    got = measure(Elements(np.full(count, 0.1, np.float32), "float32")).moments
    assert got.mean == pytest.approx(float(np.float32(0.1)), rel=1e-12)
    assert got.norm == pytest.approx(447.2136, rel=1e-6)
    assert (got.std, got.skewness, got.kurtosis, got.entropy_bits) == (0.0, 0.0, 0.0, 0.0)


def test_entropy_does_not_depend_on_scale() -> None:
    array = RANDOM.normal(size=10_000)
    assert moments(array).entropy_bits == pytest.approx(moments(array * 1e-12).entropy_bits)
    assert moments(np.linspace(0, 1, 64_000)).entropy_bits == pytest.approx(6.0, abs=1e-3)


def test_non_finite_values_are_counted_and_left_out() -> None:
    array = RANDOM.normal(size=(40, 30))
    spoiled = array.copy()
    spoiled[3, 4], spoiled[5, 6], spoiled[7] = np.nan, np.inf, -np.inf
    got = measure(elements(spoiled))
    assert (got.moments.nan_count, got.moments.infinite_count) == (1, 31)
    rest = spoiled[np.isfinite(spoiled)]
    assert got.moments.mean == pytest.approx(rest.mean())
    assert got.moments.kurtosis == pytest.approx(stats.kurtosis(rest))
    assert got.moments.maximum == rest.max()
    largest = got.largest[0]
    assert spoiled.reshape(-1)[largest[1]] == largest[2]
    assert np.isfinite(got.row_squares).all()


def test_nothing_to_measure() -> None:
    empty = moments(np.zeros((0, 3)))
    assert (empty.count, empty.mean, empty.norm) == (0, None, None)
    lost = moments([np.nan, np.inf])
    assert (lost.nan_count, lost.infinite_count, lost.mean, lost.minimum) == (1, 1, None, None)
    record = describe("lost", "weight", elements(np.full((4, 4), np.nan)))
    assert record.missing["moments"] == "no element is finite"
    assert record.spectrum is None


def test_pooling_is_measuring_together() -> None:
    parts = [RANDOM.normal(1, 2, 500), RANDOM.gamma(1, 3, 90), np.array([4.0]), np.zeros(0), np.array([np.nan, 1e3])]
    pooled, whole = pool(map(moments, parts)), moments(np.concatenate(parts))
    for name in ("count", "nan_count", "zero_count", "minimum", "maximum"):
        assert getattr(pooled, name) == getattr(whole, name)
    for name in ("mean", "std", "skewness", "kurtosis", "norm"):
        assert getattr(pooled, name) == pytest.approx(getattr(whole, name), rel=1e-9)
    assert pool([]) == Moments(0)


def test_outliers_of_a_normal_sample_are_as_many_as_expected() -> None:
    sample = RANDOM.normal(2.0, 0.5, 3_000_000).astype(np.float32)
    found = outliers(measure(Elements(sample, "float32")), sample.shape)
    assert found is not None
    assert found.scale == pytest.approx(0.5, rel=0.01)
    assert 5.0 <= found.limit <= 5.0 * 1.126
    assert found.count == np.count_nonzero(np.abs(sample - sample.mean(dtype=float)) >= found.limit * found.scale)
    assert found.expected == pytest.approx(3_000_000 * 2 * stats.norm.sf(found.limit))
    assert found.count <= stats.poisson.ppf(0.9999, found.expected)


def test_the_largest_outliers_are_named() -> None:
    array = RANDOM.normal(0, 0.01, (300, 200))
    array[12, 34], array[250, 0], array[299, 199] = 5.0, -7.0, 3.0
    found = outliers(measure(elements(array)), array.shape)
    assert found is not None
    assert [one.position for one in found.largest[:3]] == [(250, 0), (12, 34), (299, 199)]
    assert found.largest[0].value == -7.0
    assert found.largest[0].deviations == pytest.approx(700, rel=0.05)  # not √n: the scale is robust
    assert found.count == 3
    assert found.expected < 0.1


def test_outliers_of_a_pruned_tensor_fall_back_on_the_standard_deviation() -> None:
    array = np.where(RANDOM.random((100, 100)) < 0.9, 0.0, RANDOM.normal(size=(100, 100)))
    found = outliers(measure(elements(array)), array.shape)
    assert found is not None
    assert found.scale_from == "standard deviation"


def test_rows_that_stand_out() -> None:
    array = RANDOM.normal(size=(64, 100))
    assert outlier_rows(measure(elements(array))) == ()
    array[9] *= 40
    (row,) = outlier_rows(measure(elements(array)))
    assert row.row == 9
    assert row.norm == pytest.approx(np.linalg.norm(array[9]))
    assert row.times_median == pytest.approx(40, rel=0.3)


@pytest.mark.parametrize(("times", "found"), [(4.2, 0), (4.6, 1)])
def test_the_spread_of_all_rows_says_how_far_one_may_stand_out(times: float, found: int) -> None:
    """Rows that differ by 10 % have a deviation of 0.1 / 0.6745 in the logarithm, ten of which are a factor of 4.4."""
    sizes = np.exp(np.where(np.arange(33) % 2, 0.1, -0.1))
    sizes[0], sizes[1] = 1.0, times
    array = sizes[:, None] * np.ones((33, 16))
    assert len(outlier_rows(measure(elements(array)))) == found


def test_dead_rows_and_columns() -> None:
    array = RANDOM.normal(size=(30, 20))
    array[[4, 7]] = 0.0
    array[:, 5] = 1e-12
    found = units(elements(array), measure(elements(array)))
    assert (found.dead_rows, found.first_dead_rows) == (2, (4, 7))
    assert (found.dead_columns, found.first_dead_columns) == (1, (5,))


@pytest.mark.parametrize("pattern", ["none", "scattered", "2:4", "rows", "columns", "all zero"])
def test_sparsity_patterns(pattern: str) -> None:
    array = RANDOM.normal(size=(40, 64))
    if pattern == "scattered":
        array[RANDOM.random(array.shape) < 0.6] = 0
    elif pattern == "2:4":
        order = np.argsort(RANDOM.random((40, 16, 4)), axis=2)
        array.reshape(40, 16, 4)[order < 2] = 0
    elif pattern == "rows":
        array[::2] = 0
    elif pattern == "columns":
        array[:, ::4] = 0
    elif pattern == "all zero":
        array[:] = 0
    assert units(elements(array), measure(elements(array))).sparsity == pattern


def test_coarse_types_are_measured_exactly() -> None:
    raw = np.arange(1 << 16, dtype=np.uint16)
    brain = Elements(raw, "bfloat16")
    with np.errstate(invalid="ignore"):  # half of the NaN patterns warn when they are widened
        values = (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    got = measure(brain).moments
    assert got.nan_count == np.isnan(values).sum()
    assert got.infinite_count == 2
    assert got.zero_count == 2
    assert got.maximum == values[np.isfinite(values)].max()
