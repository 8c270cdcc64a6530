"""The Triton program that merges the chunks of each tensor."""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from undertow.measure.kernels.triton_elements import store_moments

INFINITY = tl.constexpr(float("inf"))


@triton.jit(do_not_specialize=["tensors", "number"])
def merge_chunks(
    first_of, moments, exponents, sketches, block, tensors, number,
    COLUMNS: tl.constexpr, HEIGHT: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    """The second index of a program says which columns of its tensor it merges: sketch, exponents, then moments."""
    tensor = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    first, last = tl.load(first_of + tensor), tl.load(first_of + tensor + 1)
    sketch_parts: tl.constexpr = 1024 // COLUMNS if SKETCH else 0
    exponent_parts: tl.constexpr = 256 // COLUMNS if EXPONENTS else 0
    at_exponents = tensors.to(tl.int64) * (14 if MOMENTS else 0)
    at_sketches = at_exponents + tensors.to(tl.int64) * (256 if EXPONENTS else 0)
    if part < sketch_parts:
        _merge_columns(
            sketches, block + at_sketches + tensor * 1024, first, last, part * COLUMNS, 1024, COLUMNS, HEIGHT
        )
    elif part < sketch_parts + exponent_parts:
        part -= sketch_parts
        _merge_columns(
            exponents, block + at_exponents + tensor * 256, first, last, part * COLUMNS, 256, COLUMNS, HEIGHT
        )
    elif MOMENTS:
        _merge_moments(moments, block + tensor * 14, first, last, number)


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
def _merge_moments(moments, out, first, last, number):
    """All chunks are moved to the mean of the tensor."""
    lanes = tl.arange(0, 128)
    counts = tl.zeros((128,), tl.float64)
    firsts = counts
    for at in range(first, last, 128):
        place, here = moments + at + lanes, at + lanes < last
        count = tl.load(place, mask=here, other=0.0)
        counts += count
        firsts += count * tl.load(place + number * 7, mask=here, other=0.0)
        firsts += tl.load(place + number * 8, mask=here, other=0.0)
    count = tl.sum(counts)
    mean = tl.sum(firsts) / tl.maximum(count, 1.0)
    nan, positive, negative, zero = counts * 0.0, counts * 0.0, counts * 0.0, counts * 0.0
    one, two, three, four, total, squares = nan, nan, nan, nan, nan, nan
    low, high = nan + INFINITY, nan - INFINITY
    for at in range(first, last, 128):
        place, here = moments + at + lanes, at + lanes < last
        part = tl.load(place, mask=here, other=0.0)
        nan += tl.load(place + number, mask=here, other=0.0)
        positive += tl.load(place + number * 2, mask=here, other=0.0)
        negative += tl.load(place + number * 3, mask=here, other=0.0)
        zero += tl.load(place + number * 4, mask=here, other=0.0)
        low = tl.minimum(low, tl.load(place + number * 5, mask=here, other=INFINITY))
        high = tl.maximum(high, tl.load(place + number * 6, mask=here, other=-INFINITY))
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
    nothing = tl.where(count > 0.0, 0.0, float("nan"))
    store_moments(
        out, 1, count, tl.sum(nan), tl.sum(positive), tl.sum(negative), tl.sum(zero),
        tl.min(low) + nothing, tl.max(high) + nothing, mean,
        tl.sum(one), tl.sum(two), tl.sum(three), tl.sum(four), tl.sum(total), tl.sum(squares),
    )  # fmt: skip
