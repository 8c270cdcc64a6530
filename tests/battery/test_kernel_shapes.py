"""Sizes, number formats and layouts."""

import numpy as np
import pytest
import torch
from tests.battery.agreement import assert_agrees

from undertow.measure.kernels.interface import Kernel, Want

# Around vectors (4, 8, 16), groups of signs (32), rows (1024), blocks (4096) and tasks (262144) of the kernels.
SIZES = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 257, 1000, 1023, 1024, 1025, 2047, 2049,
         4095, 4096, 4097, 8191, 12345, 262143, 262144, 262145, 530001]  # fmt: skip
FORMATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_every_size(kernel: Kernel, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = SIZES if dtype == torch.float32 else [size for size in SIZES if size < 20_000]
    assert_agrees(kernel, [torch.randn(size, generator=generator).to(dtype) for size in sizes])


@pytest.mark.parametrize("want", [Want(bits) for bits in range(1, 8)], ids=str)
def test_every_selection_gives_the_same(kernel: Kernel, want: Want) -> None:
    torch.manual_seed(2)
    tensors = [torch.randn(5000), torch.randn(70), torch.full((4100,), torch.nan), torch.zeros(0)]
    part, everything = assert_agrees(kernel, tensors, want), kernel.measure(tensors)
    if want & Want.SKETCH:
        np.testing.assert_array_equal(part.sketches, everything.sketches)
    if want & Want.MOMENTS:
        np.testing.assert_array_equal(part.moments, everything.moments)


def test_layouts_are_read_in_logical_order(kernel: Kernel) -> None:
    torch.manual_seed(3)
    base = torch.randn(40, 60, 3)
    tensors = [
        base[::2], base[:, 5:17], base.transpose(0, 1), base.permute(2, 0, 1), base[3, :, 1], base[:, :, 0],
        torch.randn(7, 1).expand(7, 900), torch.randn(()).expand(3000), base.flatten()[1:], torch.randn(()),
        torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last), torch.randn(30, 0),
    ]  # fmt: skip
    got = assert_agrees(kernel, tensors)
    again = kernel.measure([tensor.contiguous().clone() for tensor in tensors])
    np.testing.assert_array_equal(got.sketches, again.sketches)


def test_no_tensors(kernel: Kernel) -> None:
    partials = kernel.measure([])
    assert len(partials) == 0
    assert partials.moments.shape == (0, 14)


@pytest.mark.filterwarnings("ignore:Sparse")  # torch's own remarks on making sparse tensors
def test_other_kinds_of_tensor(kernel: Kernel) -> None:
    torch.manual_seed(4)
    complex_numbers = torch.randn(50, 3, dtype=torch.complex64)
    parameter = torch.nn.Parameter(torch.randn(30, 4))
    tensors = [
        complex_numbers, complex_numbers.conj(), complex_numbers.conj().imag, complex_numbers.conj()[:1, :1].imag,
        parameter, parameter.T, torch.randn(40).to(torch.float8_e4m3fn), torch.randn(12, 12).to_sparse_csr(),
    ]  # fmt: skip
    assert_agrees(kernel, [t if t.dtype != torch.float8_e4m3fn else t.float() for t in tensors])
    assert kernel.measure(tensors).moments[6, 0] == 40
    assert parameter.grad_fn is None


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_gradients_count_as_dense(kernel: Kernel) -> None:
    torch.manual_seed(5)
    table = torch.nn.Embedding(700, 9, sparse=True)
    table(torch.tensor([3, 3, 5, 699, 0, 5])).square().sum().backward()
    gradient = table.weight.grad
    assert gradient is not None
    assert not gradient.is_coalesced()
    nothing = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 4), (20, 4))
    full = torch.randn(6, 5).to_sparse()
    poisoned = torch.sparse_coo_tensor(
        torch.tensor([[1, 4]]), torch.tensor([[torch.nan, 1.0], [torch.inf, 0.0]]), (9, 2)
    )
    got = assert_agrees(kernel, [torch.randn(33), gradient, nothing, full, poisoned, torch.randn(2000)])
    assert got.moments[1, 0] == 6300
    assert not gradient.is_coalesced(), "the user's gradient was changed"


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8], ids=str)
def test_a_tensor_without_fractions_is_refused(kernel: Kernel, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=str(dtype)):
        kernel.measure([torch.zeros(3), torch.zeros(3, dtype=dtype)])


def test_a_tensor_without_values_is_refused(kernel: Kernel) -> None:
    with pytest.raises(TypeError, match="meta"):
        kernel.measure([torch.zeros(3, device="meta")])


def test_measuring_changes_nothing(kernel: Kernel) -> None:
    weight = torch.randn(3000, requires_grad=True)
    before, version, state = weight.detach().clone(), weight._version, torch.get_rng_state()
    kernel.measure([weight])
    assert torch.equal(weight, before)
    assert weight._version == version
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_unit_activity(kernel: Kernel, reference: Kernel, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    values = torch.where(torch.rand(6, 10, 5) < 0.05, torch.randn(6, 10, 5), 0.0)
    values[0, 2, 0], values[1, 3, 1], values[2, 4, 2] = torch.nan, -0.0, 1e-7
    values = values.to(dtype)
    for tensor in (values, values.transpose(0, 2), values[:, 1:7], values[:0]):
        for dim in (0, 1, 2, -1):
            np.testing.assert_array_equal(kernel.unit_activity(tensor, dim), reference.unit_activity(tensor, dim))
