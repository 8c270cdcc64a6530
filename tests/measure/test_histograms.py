"""Stored histograms against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest

from undertow.measure.histograms import stored_histograms
from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.reference import ReferenceKernel
from undertow.schema.quantities import STORED_HISTOGRAM_WIDTH

torch = pytest.importorskip("torch")


def histogram_of(values: list[float]) -> np.ndarray:
    partials = ReferenceKernel().measure([torch.tensor(values, dtype=torch.float64)], Want.MOMENTS | Want.EXPONENTS)
    assert partials.exponents is not None
    return stored_histograms(partials.exponents)[0]


def test_each_power_of_two_has_its_share() -> None:
    found = histogram_of([0.0, 1.0, -1.5, 3.0, 0.25])
    first = int(found[0])
    shares = {first + place: share for place, share in enumerate(found[1:]) if share}
    assert shares == {-2: 0.25, 0: 0.5, 1: 0.25}  # zero is no part of it


def test_what_is_far_below_the_largest_counts_in_the_lowest_bucket() -> None:
    found = histogram_of([1.0, 2.0**-29, 2.0**-60, 2.0**-100])
    assert found[0] == -(STORED_HISTOGRAM_WIDTH - 2)
    assert found[1] == 0.5
    assert found[2] == 0.25
    assert found[-1] == 0.25


def test_the_smallest_numbers_have_fewer_buckets_below_them() -> None:
    found = histogram_of([2.0**-126, 2.0**-125])
    assert found[0] == -126
    assert found[1:3].tolist() == [0.5, 0.5]
    assert not found[3:].any()


@pytest.mark.parametrize("values", [[0.0, 0.0], [float("nan")], [float("inf"), 0.0]])
def test_without_a_number_there_is_no_histogram(values: list[float]) -> None:
    assert np.isnan(histogram_of(values)).all()
