"""Threads of the native kernel: the same bits whatever their number, and the lock released."""

import threading

import numpy as np
import pytest
import torch

NativeKernel = pytest.importorskip(
    "undertow.measure.kernels.native", reason="the C kernel was not built", exc_type=ImportError
).NativeKernel


def test_the_number_of_threads_changes_no_bit() -> None:
    torch.manual_seed(1)
    tensors = [torch.randn(1_500_001), torch.randn(77), torch.randn(700_000).bfloat16(), torch.randn(600_000) + 50.0]
    tensors[0][1_234_567] = torch.nan
    kernel = NativeKernel()
    one = kernel.measure(tensors, threads=1)
    for threads in (2, 3, 5):
        many = kernel.measure(tensors, threads=threads)
        np.testing.assert_array_equal(one.moments, many.moments)
        np.testing.assert_array_equal(one.exponents, many.exponents)
        np.testing.assert_array_equal(one.sketches, many.sketches)


def test_calls_from_several_threads_at_once() -> None:
    torch.manual_seed(2)
    tensors = [torch.randn(800_000), torch.randn(3000)]
    kernel = NativeKernel()
    expected = kernel.measure(tensors, threads=1)
    answers = []
    workers = [threading.Thread(target=lambda: answers.append(kernel.measure(tensors, threads=2))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(answers) == 4
    for answer in answers:
        np.testing.assert_array_equal(answer.sketches, expected.sketches)
        np.testing.assert_array_equal(answer.moments, expected.moments)


def test_a_fingerprint_notices_an_edit_through_data() -> None:
    torch.manual_seed(3)
    weights = [torch.nn.Parameter(torch.randn(500, 20)), torch.nn.Parameter(torch.randn(3)), torch.randn(40).half()]
    kernel = NativeKernel()
    before = kernel.fingerprint(weights)
    assert before is not None
    np.testing.assert_array_equal(before, kernel.fingerprint(weights))
    weights[0].data.mul_(1.0 + 1e-6)
    after = kernel.fingerprint(weights)
    assert after is not None
    np.testing.assert_array_equal(before != after, [True, False, False])
    assert np.isfinite(after).all()
