"""Kernels on a GPU: the same numbers, and no wait for the device."""

import numpy as np
import pytest
import torch
from tests.battery.agreement import assert_agrees

from undertow.measure.kernels import choose
from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.torch_portable import TorchKernel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(params=["torch", "triton"])
def kernel(request: pytest.FixtureRequest):
    if request.param == "torch":
        return TorchKernel()
    return pytest.importorskip("undertow.measure.kernels.triton_kernel").TritonKernel()


def awkward_tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    tensors = [torch.randn(size) for size in (0, 1, 33, 1023, 1024, 1025, 5000, 9_000_000)]
    tensors += [1.0 + 1e-4 * torch.randn(7000), torch.randn(3000) * 1e-30, torch.randn(3000) * 1e30]
    tensors += [torch.randn(100, 70).bfloat16().t(), torch.randn(3000).half() * 1e-6, torch.randn(500).double()]
    tensors += [torch.randn(3_000_001)[1:], torch.randn(2_000_000).pow(9), torch.ones(4_000_000)]
    # Many zeros, and exponents far outside any window of 32.
    tensors += [torch.randn(3_000_000).relu(), (20 * torch.randn(2_000_000)).exp(), torch.randn(600_000) * 1e-38]
    tensors += [(9 * torch.randn(900_000)).exp().bfloat16().relu(), torch.randn(700_001).half().relu() * 1e-4]
    tensors += [torch.where(torch.rand(500_000) < 0.001, torch.nan, torch.randn(500_000))]
    tensors[6][17], tensors[6][18], tensors[6][19] = torch.nan, torch.inf, -torch.inf
    return [tensor.cuda() for tensor in tensors]


def test_a_gpu_is_given_the_fast_kernel() -> None:
    pytest.importorskip("triton")
    assert choose("cuda").name == "triton"


@pytest.mark.parametrize("deterministic", [False, True])
def test_agrees_on_the_device(kernel, deterministic: bool) -> None:
    torch.use_deterministic_algorithms(deterministic)
    try:
        assert_agrees(kernel, awkward_tensors())
    finally:
        torch.use_deterministic_algorithms(False)
    assert not getattr(kernel, "broken", False)


def test_the_same_weights_give_the_same_bits(kernel) -> None:
    tensors = awkward_tensors()
    first, second = kernel.measure(tensors), kernel.measure(tensors)
    np.testing.assert_array_equal(first.sketches, second.sketches)
    np.testing.assert_array_equal(first.moments, second.moments)
    np.testing.assert_array_equal(first.exponents, second.exponents)


def test_the_host_never_waits(kernel) -> None:
    tensors = awkward_tensors()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        waiting = kernel.measure_on_device(tensors, Want.ALL)
        for tensor in tensors:
            tensor.add_(1.0)  # what was asked for is of before
    finally:
        torch.cuda.set_sync_debug_mode("default")
    got = waiting.to_host()
    assert got.moments[7, 0] == 9_000_000
    assert abs(got.central().mean[7]) < 0.01
    assert not getattr(kernel, "broken", False)


def test_a_captured_graph_measures_again(kernel) -> None:
    if kernel.name == "torch":
        pytest.skip("the portable kernel makes its layout while it measures")
    tensors = [torch.randn(300_000, device="cuda"), torch.randn(77, device="cuda").bfloat16()]
    kernel.measure(tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernel.measure_on_device(tensors, Want.ALL)
    for factor in (1.0, 3.0):
        for tensor in tensors:
            tensor.mul_(factor)
        graph.replay()
        expected, got = kernel.measure(tensors), captured.to_host()
        np.testing.assert_array_equal(got.moments, expected.moments)
        np.testing.assert_array_equal(got.sketches, expected.sketches)
    assert not kernel.broken
