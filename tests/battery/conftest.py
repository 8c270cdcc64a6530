"""One battery for every kernel; the native one in every instruction set this processor has.

The Triton kernel needs a GPU, or Triton's interpreter, which a process must choose before it imports Triton:
test_kernel_triton.py starts one that does.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from undertow.measure.kernels.interface import Kernel, Want
from undertow.measure.kernels.reference import ReferenceKernel
from undertow.measure.kernels.torch_portable import TorchKernel
from undertow.measure.partials import Partials

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TRITON = ["triton"] if INTERPRETED or torch.cuda.is_available() else []


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


class TritonBeside:
    """The Triton kernel, given what the battery makes on the CPU."""

    name = "triton"

    def __init__(self) -> None:
        from undertow.measure.kernels.triton_kernel import TritonKernel

        self._kernel = TritonKernel()

    def measure(self, tensors: Sequence[torch.Tensor], want: Want = Want.ALL) -> Partials:
        # The interpreter computes on the CPU, where a user's `set_flush_denormal` would reach it.
        flushing = INTERPRETED and torch.tensor(1e-40).to(torch.float64).item() == 0.0
        try:
            if flushing:
                torch.set_flush_denormal(False)
            result = self._kernel.measure([self._there(tensor) for tensor in tensors], want)
        finally:
            if flushing:
                torch.set_flush_denormal(True)
        assert not self._kernel.broken, "it fell back to plain torch operations"
        return result

    def unit_activity(self, tensor: torch.Tensor, unit_dim: int) -> Any:
        return self._kernel.unit_activity(self._there(tensor), unit_dim)

    def fingerprint(self, tensors: Sequence[torch.Tensor]) -> None:
        return None

    def _there(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if INTERPRETED or tensor.device.type == "meta" else tensor.cuda()


@pytest.fixture(params=["torch", "native-avx512", "native-avx2", "native-generic", *TRITON])
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    if request.param == "torch":
        yield TorchKernel()
        return
    if request.param == "triton":
        yield TritonBeside()
        return
    native = pytest.importorskip(
        "undertow.measure.kernels.native", reason="the C kernel was not built", exc_type=ImportError
    )
    instruction_sets = native._native.choose_instruction_set
    wanted = request.param.removeprefix("native-")
    chosen = instruction_sets(wanted)
    try:
        if chosen != wanted:
            pytest.skip(f"this processor has no {wanted}")
        yield native.NativeKernel()
    finally:
        instruction_sets("")


@pytest.fixture(scope="session")
def reference() -> ReferenceKernel:
    return ReferenceKernel()
