"""The Triton program that measures what `triton_fast` could not, in float64; of its own, for its many registers."""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803, N806, RUF059, SIM300
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from undertow.measure.kernels.triton_elements import find_chunk, guess, mix, store_moments, store_sketch, wide

INFINITY = tl.constexpr(float("inf"))


@triton.jit(do_not_specialize=["number", "listed"])
def repair_chunks(
    addresses, tensor_of, start_of, length_of, order, moments, exponents, sketches, trusted, number, listed,
    FORMAT: tl.constexpr, BYTES: tl.constexpr, LANES: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    """Measure in float64 what `measure_chunks` could not: seldom any of the `listed` chunks, so programs are few."""
    for at in range(tl.program_id(0), listed, tl.num_programs(0)):
        bad = at >= 0
        if FORMAT != tl.float64:
            bad = tl.load(trusted + tl.load(order + at)) == 0
        if bad:
            chunk, start, length, address = find_chunk(addresses, tensor_of, start_of, length_of, order + at, BYTES)
            pivot, scale, lowest = guess(address, length, FORMAT)
            _measure_exactly(
                address, length, (start // 32).to(tl.uint32), pivot,
                chunk, moments, exponents, sketches, number, FORMAT, LANES, MOMENTS, EXPONENTS, SKETCH,
            )  # fmt: skip


@triton.jit
def _measure_exactly(
    address, length, word, pivot, chunk, moments, exponents, sketches, number,
    FORMAT: tl.constexpr, LANES: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    """Any address, any value, in float64, a row at a time."""
    THREADS: tl.constexpr = 1024 // LANES
    pointer = address.to(tl.pointer_type(FORMAT))
    places = tl.arange(0, THREADS)[:, None]
    offsets = places * LANES + tl.arange(0, LANES)[None, :]
    words, bits = places // (32 // LANES), offsets % 32
    center = pivot.to(tl.float64)
    one = tl.zeros((THREADS, LANES), tl.float64)
    two, three, four, total, squares = one, one, one, one, one
    low, high = one + INFINITY, one - INFINITY
    zeros = tl.zeros((THREADS, LANES), tl.int32)
    nans, above, below = zeros, zeros, zeros
    histogram = tl.zeros((256,), tl.int32)
    sketch = tl.zeros((THREADS, LANES), tl.float64)
    rows = (length + 1023) // 1024
    for row in range(rows):
        present = row * 1024 + offsets < length
        x = wide(tl.load(pointer + row * 1024 + offsets, mask=present, other=0)).to(tl.float64)
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
            histogram += tl.histogram(tl.reshape(biased, (1024,)), 256)
        if SKETCH:
            flip = (mix(word + row * 32 + words) >> bits.to(tl.uint32)) & 1
            sketch += tl.where(flip == 1, -calm, calm)
    if MOMENTS:
        nan, positive, negative = tl.sum(nans), tl.sum(above), tl.sum(below)
        store_moments(
            moments + chunk, number, (length - nan - positive - negative).to(tl.float64),
            nan.to(tl.float64), positive.to(tl.float64), negative.to(tl.float64), tl.sum(zeros).to(tl.float64),
            tl.min(low), tl.max(high), center,
            tl.sum(one), tl.sum(two), tl.sum(three), tl.sum(four), tl.sum(total), tl.sum(squares),
        )  # fmt: skip
    if EXPONENTS:
        columns = tl.arange(0, 256)
        tl.store(exponents + chunk * 256 + columns, histogram - tl.where(columns == 0, rows * 1024 - length, 0))
    if SKETCH:
        store_sketch(sketches + chunk * 1024, sketch, LANES)
