"""How lists of tensors are cut for programs on a GPU; the cut is made on the host."""

import numpy as np
import pytest
import torch

from undertow.measure.kernels import triton_chunks
from undertow.measure.kernels.triton_chunks import chunks_of, merges_of

CPU = torch.device("cpu")
GPT2_ROWS = np.array([37693, 768] + [3, 1728, 1, 576, 3, 2304, 1, 2304, 1, 1, 1, 1] * 12 + [1, 1])


@pytest.mark.parametrize(
    "counts", [(0,), (1,), (5000, 0, 7), (1_000_000_000,), (123_456_789, 1, 1024, 40_000_000), (3,) * 2000]
)
def test_every_element_belongs_to_one_chunk(counts: tuple[int, ...]) -> None:
    formats = tuple([torch.float32, torch.bfloat16][place % 2] for place in range(len(counts)))
    chunks = chunks_of(counts, formats, CPU, 2)
    records = np.concatenate([np.empty((0, 4), np.int64), *(one.numpy() for _, one in chunks.records)])
    records = records[np.argsort(records[:, 0])]
    np.testing.assert_array_equal(records[:, 0], np.arange(chunks.number))
    first = chunks.first_of.numpy()
    for tensor, count in enumerate(counts):
        mine = records[first[tensor] : first[tensor + 1]]
        assert (mine[:, 1] == tensor).all()
        np.testing.assert_array_equal(mine[:, 2], np.cumsum([0, *mine[:-1, 3]])[: len(mine)])
        assert mine[:, 3].sum() == count
        assert (mine[:, 2] % 1024 == 0).all()
    for dtype, one in chunks.records:
        assert {formats[tensor] for tensor in one[:, 1].tolist()} == {dtype}
    assert records[:, 3].max(initial=0) <= 511 * 1024  # the counters of a thread hold no more


def test_every_column_of_a_tensor_is_merged_once() -> None:
    numbers = np.array([0, 1, triton_chunks.TALL_TENSOR, triton_chunks.TALL_TENSOR + 1])
    merges = merges_of(numbers)
    for tensor, number in enumerate(numbers.tolist()):
        tall = number > triton_chunks.TALL_TENSOR
        width = triton_chunks.TALL_MERGED_COLUMNS if tall else triton_chunks.MERGED_COLUMNS
        parts = sorted((merges[merges >> 8 == tensor] & 255).tolist())
        assert parts == [*range(1280 // width), 255]


def test_no_slot_waits_long_for_the_last() -> None:
    for slots in (264, 396):
        length = triton_chunks._rows(GPT2_ROWS, slots)
        assert triton_chunks._slowest(GPT2_ROWS, slots, length) < 1.1 * GPT2_ROWS.sum() / slots
