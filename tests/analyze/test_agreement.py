"""Agreement and conflict of the micro-batches of a step, against the gradients themselves."""

from __future__ import annotations

import numpy as np
import pytest

from undertow.components.micro_batch_agreement import APART, NOT_MEASURED, micro_batch_agreement


def noise_scales(gradients: np.ndarray) -> np.ndarray:
    """Of (steps × layers × micro-batches × elements), as runs record them."""
    count = gradients.shape[2]
    mean = gradients.mean(axis=2)
    variance = np.square(gradients - mean[:, :, None]).sum(axis=(2, 3)) / (count - 1)
    signal = np.square(mean).sum(axis=2) - variance / count
    return np.where(signal > 0, variance / np.where(signal > 0, signal, 1), np.inf)


@pytest.mark.parametrize("count", [2, 5])
def test_agreement_is_the_cosine(count: int) -> None:
    rng = np.random.default_rng(count)
    shared = rng.normal(size=(60, 4, 1, 400))
    gradients = shared + 0.7 * rng.normal(size=(60, 4, count, 400))
    units = gradients / np.linalg.norm(gradients, axis=3, keepdims=True)
    cosine = np.median((units[:, :, 0] * units[:, :, 1]).sum(axis=2))
    found = micro_batch_agreement(noise_scales(gradients), 100)
    assert found.value == pytest.approx(cosine, abs=0.02)
    assert (found.conflicting, found.reason) == ([], "")


def test_opposed_tasks_conflict_where_they_meet() -> None:
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(60, 3, 2, 50)) + 3
    gradients[:, 1, 1] = -gradients[:, 1, 0] + 0.1 * rng.normal(size=(60, 50))
    found = micro_batch_agreement(noise_scales(gradients), 100)
    assert found.conflicting == [1]
    assert found.value is not None
    assert micro_batch_agreement(noise_scales(gradients)[:31], 100).conflicting == []
    only = micro_batch_agreement(noise_scales(gradients)[:, 1:2], 100)
    assert (only.value, only.reason) == (None, APART)


@pytest.mark.parametrize("elements", [1, 100])
@pytest.mark.parametrize("count", [2, 16])
def test_noise_is_no_conflict(count: int, elements: int) -> None:
    scales = noise_scales(np.random.default_rng(1).normal(size=(32, 2000, count, elements)))
    assert len(micro_batch_agreement(scales, 32).conflicting) <= 0.001 * scales.shape[1]


def test_without_micro_batches_there_is_a_reason() -> None:
    assert micro_batch_agreement(None, 100).reason == NOT_MEASURED
    assert micro_batch_agreement(np.full((50, 3), np.nan), 100).reason == NOT_MEASURED
    rare = np.full((500, 2), np.nan)
    rare[::100, 0] = 1.0  # the other layer never takes part
    assert micro_batch_agreement(rare, 100).value == 0.5
