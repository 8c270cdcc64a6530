"""Many readings in one call say the same as each by itself, to the last bit."""

from __future__ import annotations

import weakref

import numpy as np
import pytest

from undertow.measure import sketches
from undertow.measure.sketches import Direction
from undertow.measure.statistics import statistics

torch = pytest.importorskip("torch")
native = pytest.importorskip("undertow.measure.kernels.native", reason="built without a C compiler")

from undertow.measure.packed import directions_of_many, statistics_of_many  # noqa: E402


def readings(count: int, seed: int):
    """Of the same tensors, which change in between."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(size, generator=generator) for size in ((64, 40), (3,), (), (0,), (1500,))]
    plain = native.NativeKernel().plain(tensors, [*map(weakref.ref, tensors)], False)
    found = []
    for number in range(count):
        for tensor in tensors:
            tensor += 0.1 * torch.randn(tensor.shape, generator=generator)
        if number == 2:
            tensors[0][0, 0] = float("nan")
        found.append(plain.read())
    return found


@pytest.mark.parametrize("count", [1, 2, 5])
def test_statistics(count):
    packed = readings(count, 1)
    expected = np.stack([statistics(one.to_host()) for one in packed])
    assert statistics_of_many(packed).tobytes() == expected.tobytes()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_directions(count):
    gradients, weights = readings(count, 2), readings(count, 3)
    offsets = gradients[0].offsets
    before = np.random.default_rng(0).normal(size=(4, int(offsets[-1])))
    sums, expected = np.full((2, count, len(Direction), len(offsets) - 1), np.nan)
    last = directions_of_many(gradients, weights, sums, *before)
    gradient, weight, change, start = before
    for out, new_gradient, new_weight in zip(expected, gradients, weights):
        new = np.empty_like(change)
        these = new_gradient.to_host().sketches, new_weight.to_host().sketches
        sketches.directions(offsets, out, new, these[0], gradient, these[1], weight, change, start)
        (gradient, weight), change = these, new
    assert sums.tobytes() == expected.tobytes()
    assert last.tobytes() == change.tobytes()


def test_readings_of_other_tensors_are_refused():
    packed = readings(2, 4)
    packed[1].data = packed[1].data[:-8]
    with pytest.raises(ValueError, match="not all are of these tensors"):
        statistics_of_many(packed)
