"""Tensors given one by one to the Triton kernel, and lists that it knows: the same bits as when measured at once."""

import weakref

import numpy as np
import pytest
import torch
from tests.battery.conftest import INTERPRETED, TRITON

from undertow.measure.kernels.interface import Want

pytestmark = pytest.mark.skipif(not TRITON, reason="needs a GPU, or Triton's interpreter")
DEVICE = "cpu" if INTERPRETED else "cuda"


@pytest.fixture
def triton_kernel():
    from undertow.measure.kernels.triton_kernel import TritonKernel

    kernel = TritonKernel()
    yield kernel
    assert not kernel.broken


def _tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    wild = torch.randn(1500)
    wild[[0, 17, 1499]] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return [
        one.to(DEVICE)
        for one in (
            torch.randn(33, 1000), torch.randn(7, 5).bfloat16(), torch.randn(2000).half(), torch.randn(100).double(),
            torch.randn(30, 20).t(), wild, torch.zeros(64), torch.ones(1) * 3, torch.randn(2049)[1:],
        )
    ]  # fmt: skip


def test_outputs_one_by_one_triton(triton_kernel) -> None:
    tensors = _tensors()
    triton_kernel.measure_output(tensors[-1])  # another page: its memory is used again
    triton_kernel.send_outputs()
    found = [triton_kernel.measure_output(one) for one in tensors]
    triton_kernel.send_outputs()
    for tensor, one in zip(tensors, found):
        alone, mine = triton_kernel.measure([tensor], Want.MOMENTS), one.to_host()
        assert mine.moments.tobytes() == alone.moments.tobytes(), tensor.shape
        assert mine.exponents is None
        assert mine.sketches is None


def test_more_outputs_than_a_page_holds_triton(triton_kernel, monkeypatch) -> None:
    from undertow.measure.kernels import triton_outputs

    monkeypatch.setattr(triton_outputs, "_MOST_OUTPUTS", 3)
    monkeypatch.setattr(triton_outputs, "_MOST_CHUNKS", 4)
    tensors = [torch.full((size,), float(size), device=DEVICE) for size in (5, 70_000, 9, 33_000, 11, 140_000, 12)]
    found = [triton_kernel.measure_output(one) for one in tensors]
    triton_kernel.send_outputs()
    assert [one.to_host().moments[0, 5] for one in found] == [5, 70_000, 9, 33_000, 11, 140_000, 12]


def test_outputs_that_are_dropped_leave_nothing_triton(triton_kernel) -> None:
    triton_kernel.measure_output(torch.ones(10, device=DEVICE))
    triton_kernel.drop_outputs()
    kept = triton_kernel.measure_output(torch.full((10,), 2.0, device=DEVICE))
    triton_kernel.send_outputs()
    assert kept.to_host().moments[0, 5] == 2.0


def test_a_list_that_is_read_again_triton(triton_kernel) -> None:
    parameters = [torch.nn.Parameter(torch.randn(n, device=DEVICE)) for n in (3, 1500, 2100)]
    references = [weakref.ref(one) for one in parameters]
    for one in parameters:
        one.grad = torch.randn_like(one)
    known = triton_kernel.plain([one.grad for one in parameters], references, True)
    mark = None
    for want in (Want.ALL, Want.MOMENTS, Want.MOMENTS | Want.SKETCH, Want.ALL):
        found = known.read_and_mark(int(want))
        assert found is not None
        same = triton_kernel.measure([one.grad for one in parameters], want)
        mine, mark = found[0].to_host(), found[1]
        for name in ("moments", "exponents", "sketches"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(same, name))
    assert known.is_unchanged(mark)
    assert known.any_nonfinite() is None
    parameters[1].grad.mul_(2.0)
    assert not known.is_unchanged(mark)
    parameters[1].grad = torch.zeros(1500, device=DEVICE)  # elsewhere
    again = known.read(int(Want.MOMENTS)).to_host()
    assert again.moments[1, 5] == again.moments[1, 6] == 0.0
    parameters[2].grad = None
    assert known.read() is None
    assert known.mark() is None
    assert not known.is_unchanged(mark)
