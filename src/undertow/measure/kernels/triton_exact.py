"""Measuring a chunk of a tensor in float64, whatever it holds and wherever it begins.

For what the fast way cannot do. It is part of the same program, so it makes do with the registers of that: each thread
has one element of a row at a time, and goes over the chunk once for each part of the row that it has to do with.
"""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803, RUF059
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from undertow.measure.kernels.triton_elements import guess, mix, store_moments, wide

INFINITY = tl.constexpr(float("inf"))


@triton.jit
def measure_exactly(
    address, length, word, chunk, moments, exponents, sketches, number,
    FORMAT: tl.constexpr, WIDTH: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    pointer = address.to(tl.pointer_type(FORMAT))
    places = tl.arange(0, WIDTH)
    pivot, scale, lowest, all_finite = guess(address, length, FORMAT)
    center = pivot.to(tl.float64)
    one = tl.zeros((WIDTH,), tl.float64)
    two, three, four, total, squares = one, one, one, one, one
    low, high = one + INFINITY, one - INFINITY
    zeros = tl.zeros((WIDTH,), tl.int32)
    nans, above, below = zeros, zeros, zeros
    histogram = tl.zeros((256,), tl.int32)
    rows = (length + 1023) // 1024
    for part in range(1024 // WIDTH):
        sketch = tl.zeros((WIDTH,), tl.float64)
        columns = part * WIDTH + places
        for row in range(rows):
            present = row * 1024 + columns < length
            x = wide(tl.load(pointer + row * 1024 + columns, mask=present, other=0)).to(tl.float64)
            finite = present & (tl.abs(x) < INFINITY)
            calm = tl.where(finite, x, 0.0)
            if MOMENTS:
                deviation = tl.where(finite, calm - center, 0.0)
                square = deviation * deviation
                one += deviation
                two += square
                three += square * deviation
                four += square * square
                total += tl.abs(calm)
                squares += calm * calm
                low = tl.minimum(low, tl.where(finite, x, INFINITY))
                high = tl.maximum(high, tl.where(finite, x, -INFINITY))
                zeros += (present & (x == 0.0)).to(tl.int32)
                nans += (x != x).to(tl.int32)
                above += (x == INFINITY).to(tl.int32)
                below += (x == -INFINITY).to(tl.int32)
            if EXPONENTS:
                # The eleven bits of a float64's exponent, moved from its bias (1023) to that of float32 (127).
                stored = ((x.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32)
                biased = tl.where(stored == 0x7FF, 255, tl.minimum(tl.maximum(stored - 896, 0), 254))
                histogram += tl.histogram(biased, 256)
            if SKETCH:
                flip = (mix(word + row * 32 + columns // 32) >> (columns % 32).to(tl.uint32)) & 1
                sketch += tl.where(flip == 1, -calm, calm)
        if SKETCH:
            tl.store(sketches + chunk * 1024 + columns, sketch)
    if MOMENTS:
        nan, positive, negative = tl.sum(nans), tl.sum(above), tl.sum(below)
        store_moments(
            moments + chunk, number, (length - nan - positive - negative).to(tl.float64),
            nan.to(tl.float64), positive.to(tl.float64), negative.to(tl.float64), tl.sum(zeros).to(tl.float64),
            tl.min(low), tl.max(high), center,
            tl.sum(one), tl.sum(two), tl.sum(three), tl.sum(four), tl.sum(total), tl.sum(squares),
        )  # fmt: skip
    if EXPONENTS:
        bucket = tl.arange(0, 256)
        tl.store(exponents + chunk * 256 + bucket, histogram - tl.where(bucket == 0, rows * 1024 - length, 0))
