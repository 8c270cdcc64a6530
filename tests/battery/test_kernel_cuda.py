"""The portable kernel on a GPU: the same numbers, and no wait for the device."""

import numpy as np
import pytest
import torch
from tests.battery.agreement import assert_agrees

from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.torch_portable import TorchKernel

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def awkward_tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    tensors = [torch.randn(size) for size in (0, 1, 33, 1023, 1024, 1025, 5000, 9_000_000)]
    tensors += [1.0 + 1e-4 * torch.randn(7000), torch.randn(3000) * 1e-30, torch.randn(3000) * 1e30]
    tensors += [torch.randn(100, 70).bfloat16().t(), torch.randn(3000).half() * 1e-6, torch.randn(500).double()]
    tensors[6][17], tensors[6][18], tensors[6][19] = torch.nan, torch.inf, -torch.inf
    return [tensor.cuda() for tensor in tensors]


@pytest.mark.parametrize("deterministic", [False, True])
def test_agrees_on_the_device(deterministic: bool) -> None:
    torch.use_deterministic_algorithms(deterministic)
    try:
        assert_agrees(TorchKernel(), awkward_tensors())
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_same_weights_give_the_same_bits() -> None:
    tensors = awkward_tensors()
    first, second = TorchKernel().measure(tensors), TorchKernel().measure(tensors)
    np.testing.assert_array_equal(first.sketches, second.sketches)
    np.testing.assert_array_equal(first.moments, second.moments)


def test_the_host_never_waits() -> None:
    tensors = awkward_tensors()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        waiting = TorchKernel().measure_on_device(tensors, Want.ALL)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert waiting.to_host().moments[7, 0] == 9_000_000
