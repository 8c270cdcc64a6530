"""The Triton program that measures a chunk of a tensor.

A chunk is read once, in tiles of four rows of 1024 elements. Moments are sums of float32, of deviations from a pivot
near the mean, scaled by a power of two near their spread: both are guessed from a sample spread over the chunk. A
chunk whose guess turns out wrong, or that holds a value that is not finite, is measured again by `triton_exact`. The
sketch is always summed in float64, since differences of sketches matter. Exponents are counted by `triton_tally`.

Numbers are summed in a fixed order, atomics are for counts only: the same input gives the same bits.
"""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803, N806, SIM102, SIM300
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from undertow.measure.kernels.triton_elements import find_chunk, guess, mix, store_moments, store_sketch, wide
from undertow.measure.kernels.triton_exact import measure_exactly
from undertow.measure.kernels.triton_seldom import count_seldom, count_seldom_again
from undertow.measure.kernels.triton_tally import (
    WINDOW,
    add_row,
    add_words,
    count_outside,
    exponent_of_tally,
    is_nonzero,
    lanes_of,
    reaches,
    spread_bits,
    tally,
)

INFINITY = tl.constexpr(float("inf"))
# Scaled deviations between these leave room in float32 for the fourth powers of all that matters to the sums.
SMALLEST_PEAK = tl.constexpr(2.0**-16)
LARGEST_PEAK = tl.constexpr(2.0**24)


@triton.jit(do_not_specialize=["number"])
def measure_chunks(
    addresses, records, moments, exponents, sketches, number,
    FORMAT: tl.constexpr, BYTES: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """`number` is that of all chunks; `records` are of those of this format."""
    chunk, start, length, address = find_chunk(addresses, records + tl.program_id(0) * 4, BYTES)
    measure_chunk(
        chunk, start, length, address, moments, exponents, sketches, number,
        FORMAT, BYTES, LANES, WIDTH, MOMENTS, EXPONENTS, SKETCH, PTX,
    )  # fmt: skip


@triton.jit
def measure_chunk(
    chunk, start, length, address, moments, exponents, sketches, number,
    FORMAT: tl.constexpr, BYTES: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    word = (start // 32).to(tl.uint32)
    good = length < 0
    if FORMAT != tl.float64:
        if address % 16 == 0:
            good = _measure_fast(
                address, length, word, chunk, moments, exponents, sketches, number,
                FORMAT, BYTES, LANES, MOMENTS, EXPONENTS, SKETCH, PTX,
            )  # fmt: skip
    if not good:
        tl.debug_barrier()  # it may overwrite what other threads have just written
        measure_exactly(
            address, length, word, chunk, moments, exponents, sketches, number,
            FORMAT, WIDTH, MOMENTS, EXPONENTS, SKETCH,
        )  # fmt: skip


@triton.jit
def _measure_fast(
    address, length, word, chunk, moments, exponents, sketches, number,
    FORMAT: tl.constexpr, BYTES: tl.constexpr, LANES: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Whether the result can be trusted."""
    THREADS: tl.constexpr = 1024 // LANES  # each of them reads neighbours
    pointer = tl.multiple_of(address.to(tl.pointer_type(FORMAT)), 16)
    places = tl.arange(0, THREADS)
    offsets = places[:, None] * LANES + tl.arange(0, LANES)[None, :]
    whole, tiles = length // 4096, (length + 4095) // 4096
    # Asked for before anything is known, and later when the same row of the tile before is done with.
    x0 = tl.load(pointer + offsets, mask=offsets < whole * 4096)
    x1 = tl.load(pointer + 1024 + offsets, mask=offsets < whole * 4096)
    x2 = tl.load(pointer + 2048 + offsets, mask=offsets < whole * 4096)
    x3 = tl.load(pointer + 3072 + offsets, mask=offsets < whole * 4096)
    out = exponents + chunk * 256
    if EXPONENTS:
        tl.store(out + tl.arange(0, 256), tl.zeros((256,), tl.int32))
        tl.debug_barrier()  # every thread may add to any of them
    pivot, scale, lowest, calm = guess(address, length, FORMAT)
    if not calm:
        whole, tiles = 0, 0
    none = tl.zeros((THREADS,), tl.float32)
    one, two, three, four, total, nonzero, inside = none, none, none, none, none, none, none
    low, high = none + INFINITY, none - INFINITY
    zeros = tl.zeros((THREADS,), tl.uint32)
    ones, twos, fours, eights = zeros, zeros, zeros, zeros
    bytes = tl.zeros((THREADS, 2, 2, 2), tl.uint32)
    sketch = tl.zeros((THREADS, LANES), tl.float64)
    words = word + places[:, None] // (32 // LANES)
    for tile in range(whole):
        # Those of the next one are on their way meanwhile; there is none after the last.
        after = pointer + tl.minimum(tile + 1, whole - 1) * 4096 + offsets
        n0, n1, n2, n3 = tl.load(after), tl.load(after + 1024), tl.load(after + 2048), tl.load(after + 3072)
        (one, two, three, four, total, nonzero, inside, low, high,
         ones, twos, fours, eights, bytes, zeros, sketch) = _add_tile(
            wide(x0), wide(x1), wide(x2), wide(x3), pointer + tile * 4096, offsets, None, words + tile * 128,
            pivot, scale, lowest, out,
            one, two, three, four, total, nonzero, inside, low, high, ones, twos, fours, eights, bytes, zeros, sketch,
            FORMAT, BYTES, LANES, MOMENTS, EXPONENTS, SKETCH, PTX,
        )  # fmt: skip
        x0, x1, x2, x3 = n0, n1, n2, n3
    if whole < tiles:
        after = pointer + whole * 4096 + offsets
        left = length - whole * 4096
        x0 = tl.load(after, mask=offsets < left, other=0)
        x1 = tl.load(after + 1024, mask=offsets + 1024 < left, other=0)
        x2 = tl.load(after + 2048, mask=offsets + 2048 < left, other=0)
        x3 = tl.load(after + 3072, mask=offsets + 3072 < left, other=0)
        (one, two, three, four, total, nonzero, inside, low, high,
         ones, twos, fours, eights, bytes, zeros, sketch) = _add_tile(
            wide(x0), wide(x1), wide(x2), wide(x3), pointer + whole * 4096, offsets, left, words + whole * 128,
            pivot, scale, lowest, out,
            one, two, three, four, total, nonzero, inside, low, high, ones, twos, fours, eights, bytes, zeros, sketch,
            FORMAT, BYTES, LANES, MOMENTS, EXPONENTS, SKETCH, PTX,
        )  # fmt: skip
    trusted = calm
    absent = tiles * 4096 - length
    if MOMENTS or EXPONENTS:
        smallest, largest = tl.split(tl.min(tl.join(low, -high), 0))
        largest = -largest
        counted = zeros.to(tl.float32) if EXPONENTS and PTX else nonzero
        powers, others = tl.split(_sums(one, two, three, four, total, counted, inside))
        powers_below, powers_above = tl.split(powers)
        first, second = tl.split(powers_below)
        third, fourth = tl.split(powers_above)
        others, last = tl.split(others)
        absolute, seen = tl.split(others)
        within, _ = tl.split(last)
        zero = seen.to(tl.int32) - absent if EXPONENTS and PTX else length - seen.to(tl.int32)
        trusted = trusted & (absolute < INFINITY)
    elif SKETCH:
        trusted = trusted & (tl.sum(tl.abs(sketch)) < INFINITY)
    if MOMENTS:
        peak = tl.maximum(tl.abs((smallest - pivot) * scale), tl.abs((largest - pivot) * scale))
        trusted = trusted & (fourth < INFINITY)
        trusted = trusted & (peak <= LARGEST_PEAK) & ((peak >= SMALLEST_PEAK) | (peak == 0.0))
    if trusted:
        if MOMENTS:
            unit = 1.0 / scale.to(tl.float64)
            first, second, third = first * unit, second * unit * unit, third * unit * unit * unit
            center, count = pivot.to(tl.float64), length.to(tl.float64)
            nothing = count * 0.0
            store_moments(
                moments + chunk, number, count, nothing, nothing, nothing, zero.to(tl.float64),
                smallest.to(tl.float64), largest.to(tl.float64), center,
                first, second, third, fourth * unit * unit * unit * unit, absolute,
                second + 2.0 * center * first + count * center * center,
            )  # fmt: skip
        if EXPONENTS:
            counts, exponent = tally(ones, twos, fours, eights, bytes), exponent_of_tally(lowest)
            tl.debug_barrier()  # threads have set these to 0 and added to them
            tl.atomic_add(out + exponent, counts - tl.where(exponent % 32 == 0, zero + absent, 0), sem="relaxed")
            tl.atomic_add(out, zero, sem="relaxed")
            if not PTX:
                top = tl.maximum(tl.abs(smallest), tl.abs(largest)).to(tl.int32, bitcast=True) >> 23
                if (within.to(tl.int32) + zero < length) | (top >= lowest + WINDOW):
                    count_outside(pointer, length, lowest, out, LANES)
        if SKETCH:
            store_sketch(sketches + chunk * 1024, sketch, LANES)
    return trusted


@triton.jit
def _add_tile(
    x0, x1, x2, x3, here, offsets, left, words, pivot, scale, lowest, out,
    one, two, three, four, total, nonzero, inside, low, high, ones, twos, fours, eights, bytes, zeros, sketch,
    FORMAT: tl.constexpr, BYTES: tl.constexpr, LANES: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Sums are those of each thread, over its lanes; except the sketch, where every lane is a bucket.

    `left` elements are there, and zeros instead of the others; None when all are.
    """
    places, lanes = tl.arange(0, 1024 // LANES), tl.arange(0, LANES)[None, :]
    to_last = (32 - LANES - places[:, None] * LANES % 32).to(tl.uint32)
    enough = one * 0.0
    for row in tl.static_range(4):
        x = x0 if row == 0 else x1 if row == 1 else x2 if row == 2 else x3
        if MOMENTS or EXPONENTS:
            total += _sum(tl.abs(x))
            if left is None:
                low, high = tl.minimum(low, _least(x)), tl.maximum(high, _greatest(x))
            else:
                present = row * 1024 + offsets < left
                low = tl.minimum(low, _least(tl.where(present, x, INFINITY)))
                high = tl.maximum(high, _greatest(tl.where(present, x, -INFINITY)))
            if EXPONENTS and PTX:
                enough += _sum(reaches(x, lowest))
            elif PTX:
                nonzero += _sum(is_nonzero(x))
            else:
                nonzero += _sum((x != 0.0).to(tl.float32))
                inside += _sum((tl.abs(x) >= (lowest << 23).to(tl.float32, bitcast=True)).to(tl.float32))
        if MOMENTS:
            shift = tl.full(x.shape, -pivot * scale, tl.float32)
            deviation = tl.fma(x, tl.full(x.shape, scale, tl.float32), shift)
            if left is not None:
                deviation = tl.where(row * 1024 + offsets < left, deviation, 0.0)
            square = deviation * deviation
            one += _sum(deviation)
            two += _sum(square)
            three += _dot(square, deviation)
            four += _dot(square, square)
        if SKETCH:
            # The sign of the last lane goes to the front first, so that the other shifts are the same in all threads.
            flip = ((mix(words + row * 32) << to_last) << (LANES - 1 - lanes).to(tl.uint32)) & 0x80000000
            sketch += (x.to(tl.uint32, bitcast=True) ^ flip).to(tl.float32, bitcast=True).to(tl.float64)
    if EXPONENTS:
        ones, twos, a = add_row(x0, ones, twos, PTX)
        ones, twos, b = add_row(x1, ones, twos, PTX)
        ones, twos, c = add_row(x2, ones, twos, PTX)
        ones, twos, d = add_row(x3, ones, twos, PTX)
        fours, a = add_words(fours, a, b)
        fours, c = add_words(fours, c, d)
        eights, carry = add_words(eights, a, c)
        bytes += spread_bits(carry)
    if EXPONENTS and PTX:
        reach = tl.maximum(tl.abs(low), tl.abs(high))
        if left is None:
            mine = here.to(tl.int64) + places * (LANES * BYTES)
            zeros = count_seldom_again(zeros, enough, reach, lowest, out, mine, FORMAT)
        else:
            zeros = count_seldom(zeros, enough, reach, lowest, out, x0, x1, x2, x3)
    return one, two, three, four, total, nonzero, inside, low, high, ones, twos, fours, eights, bytes, zeros, sketch


@triton.jit
def _sum(x):
    a, b, c, d = lanes_of(x)
    return ((a + b) + c) + d


@triton.jit
def _dot(x, y):
    """Said in full, since compilers that are free to choose would round the same sums differently in other programs."""
    a, b, c, d = lanes_of(x)
    e, f, g, h = lanes_of(y)
    return tl.fma(d, h, tl.fma(c, g, tl.fma(b, f, a * e)))


@triton.jit
def _least(x):
    a, b, c, d = lanes_of(x)
    return tl.minimum(tl.minimum(a, b), tl.minimum(c, d))


@triton.jit
def _greatest(x):
    a, b, c, d = lanes_of(x)
    return tl.maximum(tl.maximum(a, b), tl.maximum(c, d))


@triton.jit
def _sums(a, b, c, d, e, f, g):
    """Over all threads, which wait for each other at every sum: so one sum for all, and in float64."""
    left, right = tl.join(tl.join(a, b), tl.join(c, d)), tl.join(tl.join(e, f), tl.join(g, g))
    return tl.sum(tl.join(left, right).to(tl.float64), 0)
