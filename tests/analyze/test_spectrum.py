"""Singular values against numpy's, and the tail against laws made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from undertow.analyze.heavy_tail import heavy_tail
from undertow.analyze.spectrum import spectrum
from undertow.checkpoints.elements import Elements
from undertow.schema.checkpoints import Spectrum

RANDOM = np.random.default_rng(3)


def of(array: NDArray[np.float64], dtype: str = "float64", exact_up_to: int = 1024) -> Spectrum:
    values = np.ascontiguousarray(array, dtype)
    found = spectrum(Elements(values, dtype), float(np.linalg.norm(array)), float(np.abs(array).max()), exact_up_to)
    assert found is not None
    return found


def with_values(values: NDArray[np.float64], rows: int, columns: int) -> NDArray[np.float64]:
    left = np.linalg.qr(RANDOM.normal(size=(rows, len(values))))[0]
    right = np.linalg.qr(RANDOM.normal(size=(columns, len(values))))[0]
    return (left * values) @ right.T


@pytest.mark.parametrize("shape", [(60, 200), (200, 60), (1, 9), (9, 1), (64, 4, 3, 3), (70, 70)])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_exact_against_numpy(shape: tuple[int, ...], size: float) -> None:
    array = RANDOM.normal(size=shape) * size
    found = of(array)
    values = np.linalg.svd(array.reshape(shape[0], -1), compute_uv=False)
    assert (found.method, found.values_known) == ("exact", len(values))
    assert found.spectral_norm == pytest.approx(values[0], rel=1e-10)
    assert found.stable_rank == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-9)
    assert found.condition == pytest.approx(values[0] / values[-1], rel=1e-4)


@pytest.mark.parametrize("shape", [(300, 900), (900, 300), (700, 700)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_randomised_against_numpy(shape: tuple[int, int], dtype: str) -> None:
    """A flat spectrum is the hardest: nothing stands out for the method to find."""
    array = RANDOM.normal(size=shape).astype(dtype).astype(np.float64)
    found = of(array, dtype, exact_up_to=100)
    values = np.linalg.svd(array, compute_uv=False)
    assert (found.method, found.values_total) == ("randomised", min(shape))
    assert found.values_known < min(shape)
    assert found.spectral_norm == pytest.approx(values[0], rel=1e-3)
    assert found.stable_rank == pytest.approx((values**2).sum() / values[0] ** 2, rel=2e-3)
    assert found.condition is None
    assert "only the largest" in found.missing["condition"]


def test_randomised_finds_a_large_direction_exactly() -> None:
    array = with_values(np.r_[50.0, np.linspace(2, 1, 299)], 300, 500)
    found = of(array, exact_up_to=100)
    assert found.spectral_norm == pytest.approx(50.0, rel=1e-6)


@pytest.mark.parametrize("rank", [1, 3, 40, 290])
def test_randomised_when_the_rank_is_used_up(rank: int) -> None:
    """Directions made up from rounding must not count twice."""
    array = RANDOM.normal(size=(500, rank)) @ RANDOM.normal(size=(rank, 400))
    found = of(array, "float32", exact_up_to=100)
    assert found.spectral_norm == pytest.approx(np.linalg.norm(array, 2), rel=1e-5)


@pytest.mark.parametrize("alpha", [2.0, 3.0])
def test_randomised_tells_the_same_tail(alpha: float) -> None:
    squares = (1 - RANDOM.random(600)) ** (-1 / (alpha - 1))
    array = with_values(np.sqrt(squares), 600, 700)
    exact, randomised = of(array), of(array, exact_up_to=100)
    assert exact.tail_exponent is not None
    assert randomised.tail_exponent == pytest.approx(exact.tail_exponent, rel=0.15)
    assert randomised.tail_values is not None
    assert randomised.tail_values > randomised.values_known


def test_results_repeat_and_leave_the_random_stream_alone() -> None:
    array = RANDOM.normal(size=(300, 400))
    np.random.seed(5)
    before = np.random.get_state()[1].tolist()
    assert of(array, exact_up_to=10) == of(array, exact_up_to=10)
    assert np.random.get_state()[1].tolist() == before


def test_rank_deficiency_is_said() -> None:
    found = of(with_values(np.array([3.0, 2.0, 1.0]), 20, 30))
    assert found.condition is None
    assert "zero" in found.missing["condition"]
    assert found.stable_rank == pytest.approx(14 / 9)


@pytest.mark.parametrize("alpha", [2.0, 2.5, 3.5])
def test_the_exponent_of_a_known_tail(alpha: float) -> None:
    """Squares of the singular values drawn from a density ∝ x^−α above 1."""
    squares = (1 - RANDOM.random(400)) ** (-1 / (alpha - 1))
    found = of(with_values(np.sqrt(squares), 400, 500))
    assert found.tail_exponent is not None
    assert found.tail_values is not None
    error = (found.tail_exponent - 1) / np.sqrt(found.tail_values)
    assert abs(found.tail_exponent - alpha) < 4 * error
    assert found.tail_distance is not None
    assert found.tail_distance < 0.1


def test_a_random_matrix_has_no_heavy_tail() -> None:
    found = of(RANDOM.normal(size=(300, 600)))
    assert found.tail_exponent is not None
    assert found.tail_exponent > 6


def test_a_small_matrix_has_no_exponent() -> None:
    found = of(RANDOM.normal(size=(20, 30)))
    assert found.tail_exponent is None
    assert "at least 50" in found.missing["tail_exponent"]


def test_zeros_have_no_spectrum() -> None:
    assert spectrum(Elements(np.zeros((4, 4)), "float64"), 0.0, 0.0) is None


@pytest.mark.parametrize("shape", [(1200, 300), (260, 1000), (400, 400)])
@pytest.mark.parametrize(("smallest", "right"), [(0.5, 1e-5), (0.04, 1e-3), (0.011, 5e-3), (0.009, 1e-3), (1e-6, 1e-3)])
def test_float32_squares_are_enough_or_not_used(shape: tuple[int, int], smallest: float, right: float) -> None:
    """Tall matrices are squared in float32, unless their smallest singular values would drown in its rounding."""
    array = with_values(np.geomspace(1.0, smallest, min(shape)), *shape).astype(np.float32).astype(np.float64)
    found = of(array, "float32")
    values = np.linalg.svd(array, compute_uv=False)
    assert found.spectral_norm == pytest.approx(values[0], rel=1e-6)
    assert found.condition == pytest.approx(values[0] / values[-1], rel=right)


def nearest_law(values: NDArray[np.float64]) -> tuple[float, float]:
    """Every start tried, one after another."""
    best = (np.inf, 0.0)
    for start in values[:-1]:
        tail = values[values >= start]
        alpha = 1 + len(tail) / np.log(tail / start).sum()
        data, law = np.arange(len(tail)) / len(tail), 1 - (tail / start) ** (1 - alpha)
        best = min(best, (float(np.abs(data - law).max()), float(alpha)))
    return best


@pytest.mark.parametrize("seed", range(6))
def test_no_start_is_overlooked(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = np.sort(random.lognormal(0, 1 + seed / 2, 300)) if seed % 2 else np.sort(random.pareto(1.5, 70) + 1)
    tail = heavy_tail(values[::-1], np.ones(len(values)))
    assert tail is not None
    assert (tail.distance, tail.exponent) == pytest.approx(nearest_law(values))
