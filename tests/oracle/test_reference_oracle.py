"""The reference itself, against exact arithmetic, scipy and torch's own casts."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from undertow.measure.kernels.reference import ReferenceKernel
from undertow.measure.partials import Moment
from undertow.measure.signs import sign_words
from undertow.measure.statistics import statistics
from undertow.schema.quantities import STATISTIC_NAMES


def statistics_of(*tensors: torch.Tensor) -> dict[str, np.ndarray]:
    return dict(zip(STATISTIC_NAMES, statistics(ReferenceKernel().measure(tensors))))


@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (1, 1e-4), (0, 1e-30), (0, 1e30), (-1e20, 1e16)])
def test_moments_against_fractions(offset: float, scale: float) -> None:
    rng = np.random.default_rng(0)
    array = (offset + scale * rng.standard_normal(400)).astype(np.float32)
    exact = [Fraction(float(x)) for x in array]
    row = ReferenceKernel().measure([torch.from_numpy(array)]).moments[0]
    pivot = Fraction(row[Moment.PIVOT])
    for power, column in ((2, Moment.SUM2), (3, Moment.SUM3), (4, Moment.SUM4)):
        scale_of_terms = float(sum(abs(x - pivot) ** power for x in exact))
        assert abs(row[column] - float(sum((x - pivot) ** power for x in exact))) <= 1e-14 * scale_of_terms
    assert row[Moment.SUM_SQUARE] == pytest.approx(float(sum(x * x for x in exact)), rel=1e-14)
    assert row[Moment.SUM_ABSOLUTE] == pytest.approx(float(sum(abs(x) for x in exact)), rel=1e-14)
    mean = sum(exact) / len(exact)
    assert abs(float(pivot + Fraction(row[Moment.SUM1]) / 400 - mean)) <= 1e-15 * float(abs(mean) + Fraction(scale))


def test_statistics_against_scipy() -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(500), rng.exponential(size=900) * 1e-12, rng.standard_t(3, size=2000) * 1e9]
    got = statistics_of(*map(torch.from_numpy, arrays))
    for i, array in enumerate(arrays):
        expected = {
            "norm": np.linalg.norm(array), "rms": np.sqrt(np.mean(array**2)), "mean": array.mean(),
            "mean_abs": np.abs(array).mean(), "std": array.std(), "min": array.min(), "max": array.max(),
            "max_abs": np.abs(array).max(), "skewness": stats.skew(array), "kurtosis": stats.kurtosis(array),
            "zero_fraction": 0.0, "nonfinite_count": 0.0,
        }  # fmt: skip
        for name, value in expected.items():
            assert got[name][i] == pytest.approx(value, rel=1e-10), name


def test_quantiles_are_right_to_a_power_of_two() -> None:
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(5000), np.exp2(rng.uniform(-60, 40, 5000)), np.r_[np.zeros(900), rng.random(100)]]
    got = statistics_of(*map(torch.from_numpy, arrays))
    for i, array in enumerate(arrays):
        for name, share in (("abs_p05", 0.05), ("abs_p50", 0.5), ("abs_p95", 0.95)):
            exact = np.quantile(np.abs(array), share)
            if exact == 0:
                assert got[name][i] == 0
            else:
                assert 0.5 <= got[name][i] / exact <= 2.0
    assert got["abs_p50"][0] == pytest.approx(0.6745, rel=0.1), "interpolation inside an exponent"


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp8", torch.float8_e4m3fn)]
)
def test_shares_against_real_casts(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    powers = torch.empty(40_000, dtype=torch.float64).uniform_(-40, 25, generator=generator)
    values = torch.exp2(powers).float()
    values[::7] = 0
    cast = values.to(dtype).float()
    flushed = ((cast == 0) & (values != 0)).sum() / (values != 0).sum()
    limit = torch.finfo(dtype).max
    beyond = (values > limit).sum() / len(values)
    got = statistics_of(values)
    binade = 1.1 / 65  # the share of one power of two in this sample
    assert got[f"{name}_underflow"][0] == pytest.approx(flushed.item(), abs=binade * 0.2)
    assert got[f"{name}_overflow"][0] == pytest.approx(beyond.item(), abs=binade)
    if name == "bf16":
        assert got["bf16_underflow"][0] == got["bf16_overflow"][0] == 0


def test_denormals_count_as_flushed_and_huge_values_as_overflow_in_bf16() -> None:
    got = statistics_of(torch.tensor([1e-40, 0.0, 1.0, 1.0]), torch.tensor([3.4e38, 1.0]), torch.tensor([2e38, 1.0]))
    assert got["bf16_underflow"][0] == pytest.approx(1 / 3)
    np.testing.assert_array_equal(got["bf16_overflow"], [0.0, 0.5, 0.0])


def test_non_finite_values_are_never_hidden() -> None:
    nan, inf = torch.nan, torch.inf
    got = statistics_of(
        torch.tensor([1.0, nan]), torch.tensor([3.0, inf, -1.0]), torch.tensor([nan, -inf]), torch.tensor([-inf, 2.0])
    )
    np.testing.assert_array_equal(got["norm"], [nan, inf, nan, inf])
    np.testing.assert_array_equal(got["rms"], [nan, inf, nan, inf])
    np.testing.assert_array_equal(got["nonfinite_count"], [1, 1, 2, 1])
    np.testing.assert_array_equal(got["mean"], [1, 1, nan, 2])
    np.testing.assert_array_equal(got["max_abs"], [1, 3, nan, 2])


def test_empty_and_constant_tensors() -> None:
    got = statistics_of(torch.zeros(0), torch.full((1000,), 0.1), torch.zeros(5))
    for name, values in got.items():
        assert values[0] == 0 if name == "nonfinite_count" else np.isnan(values[0]), name
        assert np.isfinite(values[1:]).all(), name
    for name in ("std", "skewness", "kurtosis"):
        np.testing.assert_array_equal(got[name][1:], 0)
    np.testing.assert_array_equal(got["zero_fraction"][1:], [0, 1])
    np.testing.assert_array_equal(got["fp16_underflow"][1:], 0)


def test_shape_is_absent_rather_than_wrong_where_float64_ends() -> None:
    torch.manual_seed(0)
    got = statistics_of(torch.randn(100, dtype=torch.float64) * 1e-120)
    assert got["std"][0] == pytest.approx(1e-120, rel=0.3)
    assert np.isnan(got["kurtosis"][0])


def test_signs_are_fair_and_unrelated_to_their_neighbours() -> None:
    words = sign_words(np.arange(30_000, dtype=np.uint32))
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    assert abs(bits.mean() - 0.5) < 0.002
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.015
    signs = 1.0 - 2.0 * bits.ravel()
    for distance in (1, 2, 31, 32, 33, 512, 1024, 2048):
        assert abs((signs[:-distance] * signs[distance:]).mean()) < 0.005
