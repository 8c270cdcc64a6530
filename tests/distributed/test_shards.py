"""Sketches of the parts of a tensor add up to the sketch of the whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undertow.measure import shards
from undertow.measure.kernels import choose
from undertow.measure.kernels.interface import Want
from undertow.probe.distributed.portions import Portion

SHAPES = ((7,), (40, 12), (5, 300), (3, 4, 5, 6), (64, 1024), (2, 1000, 3), (1,))
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _blocks(shape: tuple[int, ...], dim: int, ranks: int) -> list[Portion]:
    """As `torch.chunk` cuts: the last parts may be smaller, or empty."""
    step = -(-shape[dim] // ranks)
    blocks: list[Portion] = []
    for rank in range(ranks):
        begin = min(rank * step, shape[dim])
        extent = min(step, shape[dim] - begin)
        place = tuple(begin if d == dim else 0 for d in range(len(shape)))
        size = tuple(extent if d == dim else n for d, n in enumerate(shape))
        blocks.append(Portion(shape, place, size))
    return blocks


def _cut(tensor: torch.Tensor, block: Portion) -> torch.Tensor:
    return tensor[tuple(slice(b, b + e) for b, e in zip(block.begin, block.extent, strict=True))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parts_add_up_to_the_whole(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    tensor.view(-1)[0] = float("nan")  # counted elsewhere, silent in the sketch
    whole = choose("cpu").measure([tensor], Want.SKETCH).sketches
    for dim in range(len(shape)):
        for ranks in (1, 2, 3, 8):
            total = np.zeros_like(whole)
            for block in _blocks(shape, dim, ranks):
                length, starts = block.runs()
                total += shards.sketch_of_part(_cut(tensor, block), length, starts, tensor.numel())
            np.testing.assert_allclose(total, whole, rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_native_and_numpy_agree_on_any_block(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    begin = tuple(data.draw(st.integers(0, n)) for n in shape)
    extent = tuple(data.draw(st.integers(0, n - b)) for n, b in zip(shape, begin, strict=True))
    length, starts = Portion(shape, begin, extent).runs()
    part = torch.randn(extent, generator=torch.Generator().manual_seed(2))
    count = int(np.prod(shape))
    native = shards.sketch_of_part(part, length, starts, count)
    plain = np.zeros(len(native))
    if part.numel():
        shards.in_numpy(part, length, starts, plain)
    np.testing.assert_allclose(native, plain, rtol=1e-12, atol=1e-12)


def test_a_block_of_two_cut_dimensions() -> None:
    tensor = torch.arange(6 * 8 * 5, dtype=torch.float64).reshape(6, 8, 5)
    block = Portion((6, 8, 5), (3, 2, 0), (2, 4, 5))
    length, starts = block.runs()
    assert length == 20
    flat = tensor.reshape(-1)
    expected = torch.cat([flat[start : start + length] for start in starts.tolist()])
    assert torch.equal(expected, _cut(tensor, block).reshape(-1))
