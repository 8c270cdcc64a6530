"""The Triton program that merges the chunks of each tensor."""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from undertow.measure.kernels.triton_chunks import TALL_TENSOR
from undertow.measure.kernels.triton_elements import store_moments

INFINITY = tl.constexpr(float("inf"))
TALL = tl.constexpr(TALL_TENSOR)


@triton.jit(do_not_specialize=["tensors", "number"])
def merge_chunks(
    first_of, parts, moments, exponents, sketches, block, tensors, number,
    COLUMNS: tl.constexpr, HEIGHT: tl.constexpr, TALL_COLUMNS: tl.constexpr, TALL_HEIGHT: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    """A program merges some columns of a tensor: of its exponents, then its sketch; or, after these, its moments."""
    part = tl.load(parts + tl.program_id(0))
    tensor, part = (part >> 8).to(tl.int64), part & 255
    first, last = tl.load(first_of + tensor), tl.load(first_of + tensor + 1)
    at_exponents = tensors.to(tl.int64) * (14 if MOMENTS else 0)
    at_sketches = at_exponents + tensors.to(tl.int64) * (256 if EXPONENTS else 0)
    if part == 255:
        if MOMENTS:
            if last - first <= 32:
                _merge_moments(moments, block + tensor * 14, first, last, number, 32)
            else:
                _merge_moments(moments, block + tensor * 14, first, last, number, 128)
    elif last - first <= TALL:
        _merge_part(
            exponents, sketches, block + at_exponents + tensor * 256, block + at_sketches + tensor * 1024,
            first, last, part * COLUMNS, COLUMNS, HEIGHT, EXPONENTS, SKETCH,
        )  # fmt: skip
    else:
        _merge_part(
            exponents, sketches, block + at_exponents + tensor * 256, block + at_sketches + tensor * 1024,
            first, last, part * TALL_COLUMNS, TALL_COLUMNS, TALL_HEIGHT, EXPONENTS, SKETCH,
        )  # fmt: skip


@triton.jit
def _merge_part(
    exponents, sketches, exponents_out, sketches_out, first, last, start,
    COLUMNS: tl.constexpr, HEIGHT: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    if start < 256:
        if EXPONENTS:
            _merge_columns(exponents, exponents_out, first, last, start, 256, COLUMNS, HEIGHT)
    elif SKETCH:
        _merge_columns(sketches, sketches_out, first, last, start - 256, 1024, COLUMNS, HEIGHT)


@triton.jit
def _merge_columns(chunks, out, first, last, start, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, HEIGHT: tl.constexpr):
    columns = start + tl.arange(0, COLUMNS)
    total = tl.zeros((HEIGHT, COLUMNS), tl.float64)
    for at in range(first, last, HEIGHT):
        rows = at + tl.arange(0, HEIGHT)
        place = rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
        total += tl.load(chunks + place, mask=(rows < last)[:, None], other=0).to(tl.float64)
    tl.store(out + columns, tl.sum(total, 0))


@triton.jit
def _merge_moments(moments, out, first, last, number, LANES: tl.constexpr):
    """All chunks are moved to the mean of the tensor."""
    lanes = tl.arange(0, LANES)
    counts = tl.zeros((LANES,), tl.float64)
    firsts = counts
    for at in range(first, last, LANES):
        place, here = moments + at + lanes, at + lanes < last
        count = tl.load(place, mask=here, other=0.0)
        counts += count
        firsts += count * tl.load(place + number * 7, mask=here, other=0.0)
        firsts += tl.load(place + number * 8, mask=here, other=0.0)
    count, mean = tl.split(tl.sum(tl.join(counts, firsts), 0))
    mean /= tl.maximum(count, 1.0)
    nan, positive, negative, zero = counts * 0.0, counts * 0.0, counts * 0.0, counts * 0.0
    one, two, three, four, total, squares = nan, nan, nan, nan, nan, nan
    low, high = nan + INFINITY, nan + INFINITY
    for at in range(first, last, LANES):
        place, here = moments + at + lanes, at + lanes < last
        part = tl.load(place, mask=here, other=0.0)
        nan += tl.load(place + number, mask=here, other=0.0)
        positive += tl.load(place + number * 2, mask=here, other=0.0)
        negative += tl.load(place + number * 3, mask=here, other=0.0)
        zero += tl.load(place + number * 4, mask=here, other=0.0)
        low = tl.minimum(low, tl.load(place + number * 5, mask=here, other=INFINITY))
        high = tl.minimum(high, -tl.load(place + number * 6, mask=here, other=-INFINITY))
        shift = tl.where(part > 0.0, tl.load(place + number * 7, mask=here, other=0.0) - mean, 0.0)
        first_sum = tl.load(place + number * 8, mask=here, other=0.0)
        second_sum = tl.load(place + number * 9, mask=here, other=0.0)
        third_sum = tl.load(place + number * 10, mask=here, other=0.0)
        square = shift * shift
        one += first_sum + part * shift
        two += second_sum + 2.0 * shift * first_sum + part * square
        three += third_sum + 3.0 * shift * second_sum + 3.0 * square * first_sum + part * square * shift
        four += tl.load(place + number * 11, mask=here, other=0.0) + 4.0 * shift * third_sum
        four += 6.0 * square * second_sum + 4.0 * square * shift * first_sum + part * square * square
        total += tl.load(place + number * 12, mask=here, other=0.0)
        squares += tl.load(place + number * 13, mask=here, other=0.0)
    # Summed together: threads wait for each other at every sum.
    counted = tl.join(tl.join(nan, positive), tl.join(negative, zero))
    powers = tl.join(tl.join(one, two), tl.join(three, four))
    counted, powers = tl.split(tl.sum(tl.join(counted, powers), 0))
    strange, others = tl.split(counted)
    nans, above = tl.split(strange)
    below, zeros = tl.split(others)
    lower, upper = tl.split(powers)
    sum1, sum2 = tl.split(lower)
    sum3, sum4 = tl.split(upper)
    sum_absolute, sum_square = tl.split(tl.sum(tl.join(total, squares), 0))
    smallest, largest = tl.split(tl.min(tl.join(low, high), 0))
    nothing = tl.where(count > 0.0, 0.0, float("nan"))
    store_moments(
        out, 1, count, nans, above, below, zeros, smallest + nothing, -largest + nothing, mean,
        sum1, sum2, sum3, sum4, sum_absolute, sum_square,
    )  # fmt: skip
