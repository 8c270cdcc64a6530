"""Merging and scaling partial values: as if the tensors had been measured whole, or scaled first."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.reference import ReferenceKernel
from undertow.measure.partials import Moment, Partials
from undertow.measure.statistics import statistics

EXACT = slice(Moment.COUNT, Moment.MAXIMUM + 1)
NUMBERS = st.floats(-(2.0**90), 2.0**90, width=32) | st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e-40])
ARRAYS = hnp.arrays(np.float32, st.integers(0, 30), elements=NUMBERS.map(lambda x: float(np.float32(x))))
WITHOUT_SKETCH = Want.MOMENTS | Want.EXPONENTS


def measure(*arrays: np.ndarray, want: Want = WITHOUT_SKETCH) -> Partials:
    return ReferenceKernel().measure([torch.from_numpy(array) for array in arrays], want)


def assert_same(got: Partials, expected: Partials) -> None:
    np.testing.assert_array_equal(got.moments[:, EXACT], expected.moments[:, EXACT])
    np.testing.assert_array_equal(got.exponents, expected.exponents)
    count = np.maximum(expected.finite(), 1.0)
    size = expected.moments[:, Moment.SUM_ABSOLUTE] / count
    ours, theirs = got.central(), expected.central()
    np.testing.assert_array_less(np.abs(ours.mean - theirs.mean), 1e-12 * size + 1e-300)
    spread = np.sqrt(theirs.second) + 1e-300
    for power, name in ((2, "second"), (3, "third"), (4, "fourth")):
        error = np.abs(getattr(ours, name) - getattr(theirs, name))
        np.testing.assert_array_less(error, 1e-9 * (spread + 1e-9 * size * np.sqrt(count)) ** power + 1e-300)
    for column in (Moment.SUM_ABSOLUTE, Moment.SUM_SQUARE):
        np.testing.assert_allclose(got.moments[:, column], expected.moments[:, column], rtol=1e-12)


@settings(max_examples=150, deadline=None)
@given(a=ARRAYS, b=ARRAYS, c=ARRAYS)
def test_merging_parts_is_measuring_the_whole(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    whole = measure(np.concatenate([a, b, c]))
    x, y, z = measure(a), measure(b), measure(c)
    assert_same(x.merge(y).merge(z), whole)
    assert_same(x.merge(y.merge(z)), whole)
    assert_same(z.merge(x).merge(y), whole)


def test_merging_keeps_a_small_spread_around_a_large_mean() -> None:
    rng = np.random.default_rng(0)
    parts = [(1.0 + 1e-4 * rng.standard_normal(size)).astype(np.float32) for size in (1, 3000, 17, 800)]
    merged = measure(parts[0])
    for part in parts[1:]:
        merged = merged.merge(measure(part))
    np.testing.assert_allclose(statistics(merged), statistics(measure(np.concatenate(parts))), rtol=1e-8)


def test_merging_adds_sketches_of_the_same_tensor_and_refuses_others() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(3000).astype(np.float64) for _ in range(2))
    merged = measure(a, want=Want.ALL).merge(measure(b, want=Want.ALL))
    np.testing.assert_allclose(merged.sketches, measure(a + b, want=Want.ALL).sketches, atol=1e-12)
    with pytest.raises(ValueError, match="different lengths"):
        measure(a, want=Want.ALL).merge(measure(b[:5], want=Want.ALL))
    with pytest.raises(ValueError, match="2 tensors with those of 1"):
        measure(a, b).merge(measure(a))


@settings(max_examples=100, deadline=None)
@given(array=ARRAYS, power=st.integers(-20, 20), negative=st.booleans())
def test_scaling_by_a_power_of_two_is_scaling_the_tensor(array: np.ndarray, power: int, negative: bool) -> None:
    factor = (-1.0 if negative else 1.0) * 2.0**power
    array = np.where(np.abs(array) < 2.0**-100, np.where(array == 0, 0, np.float32(1.0)), array).astype(np.float64)
    got = measure(array, want=Want.ALL).scaled(factor)
    expected = measure(array * factor, want=Want.ALL)
    assert_same(got, expected)
    np.testing.assert_array_equal(got.sketches, expected.sketches)


def test_every_tensor_may_have_its_own_factor() -> None:
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(size) for size in (2000, 5, 0, 300)]
    factors = np.array([2.0, 0.5, 4.0, 3.0])
    got = measure(*arrays, want=Want.ALL).scaled(factors)
    expected = measure(*(array * factor for array, factor in zip(arrays, factors)), want=Want.ALL)
    np.testing.assert_allclose(got.sketches, expected.sketches, rtol=1e-12)
    np.testing.assert_allclose(got.moments[:, EXACT], expected.moments[:, EXACT])
    np.testing.assert_array_equal(got.exponents[:3], expected.exponents[:3])
    assert got.exponents[3].sum() == 300


def test_exponents_that_leave_the_range_stay_at_its_edge() -> None:
    array = np.array([1e-30, 1.0, 1e30, np.inf, 0.0])
    down, up = measure(array).scaled(2.0**-60), measure(array).scaled(2.0**60)
    assert down.exponents[0, 0] == 2
    assert up.exponents[0, 254] == 1
    assert down.exponents[0, 255] == up.exponents[0, 255] == 1
    assert down.exponents.sum() == up.exponents.sum() == 5


@pytest.mark.parametrize("factor", [0.0, np.nan, np.inf])
def test_a_factor_that_cannot_be_is_named(factor: float) -> None:
    with pytest.raises(ValueError, match=str(factor)):
        measure(np.ones(3)).scaled(factor)
