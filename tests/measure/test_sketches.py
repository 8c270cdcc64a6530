"""What a sketch promises: linear, and norms and cosines within three standard errors in 99 of 100 draws."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from undertow.measure import sketches
from undertow.measure.kernels import choose
from undertow.measure.kernels.interface import Want
from undertow.measure.partials import SKETCH_BUCKETS, offsets_of


def sketch(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    result = choose().measure(tensors, Want.SKETCH).sketches
    assert result is not None
    return result


def offsets(tensors: Sequence[torch.Tensor]) -> np.ndarray:
    return offsets_of(np.array([tensor.numel() for tensor in tensors]))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def test_linear_to_rounding() -> None:
    a, b = torch.randn(7000, dtype=torch.float64), torch.randn(7000, dtype=torch.float64)
    np.testing.assert_allclose(sketch([2.5 * a - b]), 2.5 * sketch([a]) - sketch([b]), atol=1e-12)


@pytest.mark.parametrize("distribution", ["normal", "heavy", "sparse", "constant", "ramp"])
def test_norms_and_cosines_keep_their_promise(distribution: str) -> None:
    draws = 300

    def draw() -> torch.Tensor:
        size = int(torch.randint(2000, 30_000, ()))
        noise = torch.randn(size)
        return {
            "normal": noise,
            "heavy": noise.pow(3),
            "sparse": torch.where(torch.rand(size) < 0.1, noise, 0.0),
            "constant": torch.full((size,), float(noise[0])),
            "ramp": torch.arange(size) * noise[0],
        }[distribution]

    a = [draw() for _ in range(draws)]
    b = [torch.randn_like(x) + torch.rand(()) * 3 * x / x.std().clamp(min=0.1) for x in a]
    place = offsets(a)
    left, right = sketch(a), sketch(b)
    norm_error = np.abs(sketches.norms(left, place) / np.array([x.norm().item() for x in a]) - 1)
    truth = np.array([torch.cosine_similarity(x.double(), y.double(), dim=0).item() for x, y in zip(a, b)])
    cosine_error = np.abs(sketches.cosines(left, right, place) - truth)
    assert (norm_error > 3 / np.sqrt(2 * SKETCH_BUCKETS)).mean() <= 0.01
    assert (cosine_error > 3 / np.sqrt(SKETCH_BUCKETS)).mean() <= 0.01
    assert norm_error.mean() > 1e-4, "no sketch of this size is that good: the test measures nothing"


def test_a_relative_update_of_one_in_ten_million_is_seen() -> None:
    """Most float32 weights do not move at all then; the few that do must not drown in rounding."""
    before = [torch.randn(200_000) * scale for scale in (1e-2, 1.0, 1e3)]
    after = [weight + 1e-7 * weight.std() * torch.randn_like(weight) for weight in before]
    moved = np.array([(x.double() - y.double()).norm().item() for x, y in zip(after, before)])
    relative = moved / np.array([weight.double().norm().item() for weight in before])
    assert np.all((relative > 2e-8) & (relative < 3e-7))
    measured = sketches.distances(sketch(after), sketch(before), offsets(before))
    np.testing.assert_allclose(measured, moved, rtol=3 / np.sqrt(2 * SKETCH_BUCKETS))


def test_an_unmoved_weight_is_exactly_at_rest() -> None:
    weights = [torch.randn(300_000), torch.randn(10)]
    again = [weight.clone() for weight in weights]
    np.testing.assert_array_equal(sketches.distances(sketch(weights), sketch(again), offsets(weights)), 0.0)


def test_short_tensors_are_exact() -> None:
    a, b = [torch.randn(3), torch.randn(1024), torch.randn(0)], [torch.randn(3), torch.randn(1024), torch.randn(0)]
    place = offsets(a)
    np.testing.assert_allclose(sketches.norms(sketch(a), place), [x.double().norm().item() for x in a], rtol=1e-12)
    expected = [torch.cosine_similarity(x.double(), y.double(), dim=0).item() for x, y in zip(a[:2], b[:2])]
    got = sketches.cosines(sketch(a), sketch(b), place)
    np.testing.assert_allclose(got[:2], expected, rtol=1e-10)
    assert np.isnan(got[2])


def test_a_zero_tensor_has_no_direction() -> None:
    tensors = [torch.zeros(50), torch.ones(50)]
    got = sketches.cosines(sketch(tensors), sketch(tensors[::-1]), offsets(tensors))
    assert np.isnan(got).all()


def test_folding_adds_buckets_and_keeps_the_norm() -> None:
    tensors = [torch.randn(5000), torch.randn(0), torch.randn(100), torch.randn(40_000), torch.randn(64)]
    place, full = offsets(tensors), sketch(tensors)
    folded = sketches.fold(full, place)
    assert folded.shape == (5, 64)
    assert folded.dtype == np.float32
    first = full[:1024].reshape(16, 64).sum(axis=0)
    np.testing.assert_allclose(folded[0], first, rtol=1e-6)
    np.testing.assert_array_equal(folded[1], 0)
    np.testing.assert_allclose(folded[4], full[-64:], rtol=1e-6)
    norms = np.linalg.norm(folded, axis=1)
    expected = np.array([x.norm().item() for x in tensors])
    assert np.all(np.abs(norms - expected) <= 3 / np.sqrt(2 * 64) * expected + 1e-6)
    assert sketches.fold(np.zeros(0), np.zeros(1, np.int64)).shape == (0, 64)
