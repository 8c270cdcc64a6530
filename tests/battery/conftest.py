"""One battery for every kernel; the native one in every instruction set this processor has."""

from collections.abc import Iterator

import pytest
import torch

from undertow.measure.kernels.interface import Kernel
from undertow.measure.kernels.reference import ReferenceKernel
from undertow.measure.kernels.torch_portable import TorchKernel


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=["torch", "native-avx512", "native-avx2", "native-generic"])
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    if request.param == "torch":
        yield TorchKernel()
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
