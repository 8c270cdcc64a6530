"""A Gram matrix and its eigenvalues, in both precisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from undertow.analyze.gram import gram
from undertow.analyze.spectrum import eigenvalues
from undertow.checkpoints.elements import Elements

RANDOM = np.random.default_rng(11)


def gram_of(rows: int, side: int) -> NDArray[np.float64]:
    matrix = RANDOM.normal(size=(rows, side)) * RANDOM.random(side) ** (-1 / 3)
    return matrix.T @ matrix


@pytest.mark.parametrize("side", [1, 2, 3, 40, 129, 300])
@pytest.mark.parametrize("size", [1e-17, 1.0, 1e17])
@pytest.mark.parametrize(("dtype", "right"), [(np.float64, 1e-13), (np.float32, 2e-6)])
def test_eigenvalues_against_numpy(side: int, size: float, dtype: type[np.floating[Any]], right: float) -> None:
    matrix = gram_of(2 * side, side) * size
    expected = np.linalg.eigvalsh(matrix)[::-1]
    found = eigenvalues(matrix.astype(dtype))
    assert found.dtype == np.float64
    assert np.abs(found - expected).max() <= right * expected[0]


def test_none_is_negative_and_zeros_are_zeros() -> None:
    assert eigenvalues(gram_of(3, 20)).min() == 0.0
    assert eigenvalues(np.zeros((5, 5), np.float32)).tolist() == [0.0] * 5


@pytest.mark.parametrize("shape", [(9000, 40), (40, 9000), (300, 200), (1, 7), (7, 1)])
@pytest.mark.parametrize("unit", [1.0, 3.0])
@pytest.mark.parametrize(("dtype", "right"), [(np.float64, 1e-13), (np.float32, 1e-6)])
def test_gram_in_one_stretch_or_several(
    shape: tuple[int, int], unit: float, dtype: type[np.floating[Any]], right: float
) -> None:
    values = RANDOM.normal(size=shape).astype(np.float32)
    upright = (values if shape[0] >= shape[1] else values.T).astype(np.float64) / unit
    expected = upright.T @ upright
    found = gram(Elements(np.ascontiguousarray(values), "float32"), unit, dtype)
    assert np.abs(found - expected).max() <= right * np.abs(expected).max()
