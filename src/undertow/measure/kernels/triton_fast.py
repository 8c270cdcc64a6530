"""The Triton program that measures a chunk of a tensor.

A chunk is read once, in tiles of whole rows of 1024 elements. Moments are sums of float32, of deviations from a
pivot near the mean, scaled by a power of two near their spread: both are guessed from a sample spread over the
chunk. A chunk whose guess turns out wrong, or that holds a value that is not finite, is left to `triton_repair`. The
sketch is always summed in float64, since differences of sketches matter. Exponents are counted in a window of 32
powers of two around the sample's, in counters of each thread's own (`triton_private`) or, where machine code other than
NVIDIA's is wanted, eight to a word; what lies outside is added by a second look.

Numbers are summed in a fixed order, atomics are for counts only: the same input gives the same bits.
"""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803, N806, RET505
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from undertow.measure.kernels.triton_elements import find_chunk, guess, mix, store_moments, store_sketch, wide
from undertow.measure.kernels.triton_private import WINDOW, count_privately, private_counters, private_histogram

INFINITY = tl.constexpr(float("inf"))
# Scaled deviations between these leave room in float32 for the fourth powers of all that matters to the sums.
SMALLEST_PEAK = tl.constexpr(2.0**-16)
LARGEST_PEAK = tl.constexpr(2.0**24)


@triton.jit(do_not_specialize=["number"])
def measure_chunks(
    addresses, tensor_of, start_of, length_of, order, moments, exponents, sketches, trusted, number,
    FORMAT: tl.constexpr, BYTES: tl.constexpr, LANES: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr, PRIVATE: tl.constexpr,
):  # fmt: skip
    """`number` is that of all chunks; `order` names those of this format."""
    chunk, start, length, address = find_chunk(
        addresses, tensor_of, start_of, length_of, order + tl.program_id(0), BYTES
    )
    good = address % 16 == 0
    if good:
        pivot, scale, lowest = guess(address, length, FORMAT)
        good = _measure_fast(
            address, length, (start // 32).to(tl.uint32), pivot, scale, lowest,
            chunk, moments, exponents, sketches, number, FORMAT, LANES, MOMENTS, EXPONENTS, SKETCH, PRIVATE,
        )  # fmt: skip
    tl.store(trusted + chunk, good.to(tl.int8))


@triton.jit
def _measure_fast(
    address, length, word, pivot, scale, lowest, chunk, moments, exponents, sketches, number,
    FORMAT: tl.constexpr, LANES: tl.constexpr,
    MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr, PRIVATE: tl.constexpr,
):  # fmt: skip
    """Whether the result can be trusted; only then it is stored."""
    THREADS: tl.constexpr = 1024 // LANES  # each of them reads neighbours, 16 bytes
    pointer = tl.multiple_of(address.to(tl.pointer_type(FORMAT)), 16)
    places = tl.arange(0, THREADS)[:, None]
    offsets = places * LANES + tl.arange(0, LANES)[None, :]
    words, bits = places // (32 // LANES), offsets % 32
    one = tl.zeros((THREADS, LANES), tl.float32)
    two, three, four, total = one, one, one, one
    low, high = one + INFINITY, one - INFINITY
    zeros = tl.zeros((THREADS, LANES), tl.int32)
    histogram = tl.zeros((WINDOW,), tl.int32)
    sketch = tl.zeros((THREADS, LANES), tl.float64)
    whole = length // 4096
    if EXPONENTS and PRIVATE:
        base, counters = private_counters(places, THREADS)
    TILES: tl.constexpr = 255 // (4 * LANES)  # as many as a byte can count
    for stretch in range(0, whole, TILES):
        bytes = tl.zeros((THREADS, 2, 2, 2), tl.uint32)
        for tile in range(stretch, tl.minimum(stretch + TILES, whole)):
            x0 = wide(tl.load(pointer + tile * 4096 + offsets))
            x1 = wide(tl.load(pointer + (tile * 4096 + 1024) + offsets))
            x2 = wide(tl.load(pointer + (tile * 4096 + 2048) + offsets))
            x3 = wide(tl.load(pointer + (tile * 4096 + 3072) + offsets))
            for row in tl.static_range(4):
                x = x0 if row == 0 else x1 if row == 1 else x2 if row == 2 else x3
                one, two, three, four, total, low, high, zeros, sketch = _add_row(
                    x, x == x, word + (tile * 4 + row) * 32 + words, bits, pivot, scale,
                    one, two, three, four, total, low, high, zeros, sketch, False, MOMENTS, EXPONENTS, SKETCH,
                )  # fmt: skip
                if EXPONENTS and PRIVATE:
                    count_privately(x, counters, lowest, THREADS)
            if EXPONENTS and not PRIVATE:
                bytes += _count_rows(x0, x1, lowest) + _count_rows(x2, x3, lowest)
        if EXPONENTS and not PRIVATE:
            histogram += _histogram(bytes)
    rows = (length + 1023) // 1024
    for row in range(whole * 4, rows):
        present = row * 1024 + offsets < length
        x = wide(tl.load(pointer + row * 1024 + offsets, mask=present, other=0))
        one, two, three, four, total, low, high, zeros, sketch = _add_row(
            x, present, word + row * 32 + words, bits, pivot, scale,
            one, two, three, four, total, low, high, zeros, sketch, True, MOMENTS, EXPONENTS, SKETCH,
        )  # fmt: skip
        if EXPONENTS and PRIVATE:
            count_privately(x, counters, lowest, THREADS)
        elif EXPONENTS:
            histogram += _histogram(_count_rows(x, x * 0.0, lowest))
    if EXPONENTS and PRIVATE:
        histogram = private_histogram(base, THREADS)
    trusted = length > 0
    zero_count = tl.sum(zeros)
    if MOMENTS:
        smallest, largest, fourth, absolute = tl.min(low), tl.max(high), tl.sum(four), tl.sum(total)
        peak = tl.maximum(tl.abs((smallest - pivot) * scale), tl.abs((largest - pivot) * scale))
        trusted = (fourth < INFINITY) & (absolute < INFINITY)
        trusted = trusted & (peak <= LARGEST_PEAK) & ((peak >= SMALLEST_PEAK) | (peak == 0.0))
    elif SKETCH:
        trusted = tl.sum(tl.abs(sketch)) < INFINITY
    if trusted:
        if MOMENTS:
            unit = 1.0 / scale.to(tl.float64)
            first, second = tl.sum(one).to(tl.float64) * unit, tl.sum(two).to(tl.float64) * unit * unit
            third = tl.sum(three).to(tl.float64) * unit * unit * unit
            center, count = pivot.to(tl.float64), length.to(tl.float64)
            none = count * 0.0
            store_moments(
                moments + chunk, number, count, none, none, none, zero_count.to(tl.float64),
                smallest.to(tl.float64), largest.to(tl.float64), center,
                first, second, third, fourth.to(tl.float64) * unit * unit * unit * unit,
                absolute.to(tl.float64),
                second + 2.0 * center * first + count * center * center,
            )  # fmt: skip
        if EXPONENTS:
            _store_window(exponents + chunk * 256, histogram, lowest, zero_count, PRIVATE)
            if tl.sum(histogram) + zero_count < length:
                tl.debug_barrier()  # what has just been stored is added to
                _add_outside(pointer, length, lowest, exponents + chunk * 256, LANES)
        if SKETCH:
            store_sketch(sketches + chunk * 1024, sketch, LANES)
    return trusted


@triton.jit
def _add_row(
    x, present, words, bits, pivot, scale, one, two, three, four, total, low, high, zeros, sketch,
    MASKED: tl.constexpr, MOMENTS: tl.constexpr, EXPONENTS: tl.constexpr, SKETCH: tl.constexpr,
):  # fmt: skip
    if MOMENTS:
        deviation = (x - pivot) * scale
        if MASKED:
            deviation = tl.where(present, deviation, 0.0)
        square = deviation * deviation
        one += deviation
        two += square
        three += square * deviation
        four += square * square
        total += tl.abs(x)
        low = tl.minimum(low, tl.where(present, x, INFINITY) if MASKED else x)
        high = tl.maximum(high, tl.where(present, x, -INFINITY) if MASKED else x)
    if MOMENTS or EXPONENTS:
        zeros += ((x == 0.0) & present if MASKED else x == 0.0).to(tl.int32)
    if SKETCH:
        flip = (mix(words) << (31 - bits).to(tl.uint32)) & 0x80000000
        signed = (x.to(tl.uint32, bitcast=True) ^ flip).to(tl.float32, bitcast=True)
        sketch += signed.to(tl.float64)
    return one, two, three, four, total, low, high, zeros, sketch


@triton.jit
def _count_rows(x, y, lowest):
    """How many exponents of two rows lie where in the window: 32 bytes for each thread, in eight words.

    A row has four words of eight counts of four bits; neighbours are added before the counts are spread to bytes.
    """
    first, second = _nibbles(x, lowest), _nibbles(y, lowest)
    if x.shape[1] * 2 < 16:
        first += second
        return tl.join(first & 0x0F0F0F0F, (first >> 4) & 0x0F0F0F0F)
    else:
        even = (first & 0x0F0F0F0F) + (second & 0x0F0F0F0F)
        return tl.join(even, ((first >> 4) & 0x0F0F0F0F) + ((second >> 4) & 0x0F0F0F0F))


@triton.jit
def _histogram(bytes):
    """Over all threads: two sums of sixteen bits in a word, which 256 threads of 255 cannot fill."""
    words = tl.sum(tl.join(bytes & 0x00FF00FF, (bytes >> 8) & 0x00FF00FF), 0)
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (WINDOW,)).to(tl.int32)


@triton.jit
def _nibbles(x, lowest):
    place = ((x.to(tl.int32, bitcast=True) >> 21) & 0x3FC) - lowest * 4  # four bits for each exponent
    count = tl.full(x.shape, 1, tl.uint32) << (place & 28).to(tl.uint32)
    group = place & -32
    first = tl.join(tl.where(group == 0, count, 0), tl.where(group == 32, count, 0))
    second = tl.join(tl.where(group == 64, count, 0), tl.where(group == 96, count, 0))
    return tl.sum(tl.join(first, second), 1)


@triton.jit
def _store_window(out, histogram, lowest, zeros, PRIVATE: tl.constexpr):
    """Without private counters, the order of `histogram` is that in which the halves of words were joined."""
    tl.store(out + tl.arange(0, 256), tl.where(tl.arange(0, 256) == 0, zeros, 0))
    tl.debug_barrier()  # the next store overwrites some of what other threads have just written
    index = tl.arange(0, WINDOW)
    if not PRIVATE:
        word = ((index >> 4) & 1) + 2 * ((index >> 3) & 1)
        index = word * 8 + ((index >> 2) & 1) + 2 * ((index >> 1) & 1) + 4 * (index & 1)
    tl.store(out + lowest + index, histogram)


@triton.jit
def _add_outside(pointer, length, lowest, out, LANES: tl.constexpr):
    """The few exponents outside the window, one by one; the chunk still lies in the cache."""
    offsets = tl.arange(0, 1024 // LANES)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    for row in range((length + 1023) // 1024):
        x = wide(tl.load(pointer + row * 1024 + offsets, mask=row * 1024 + offsets < length, other=0))
        exponent = (x.to(tl.int32, bitcast=True) >> 23) & 255
        outside = (x != 0.0) & ((exponent < lowest) | (exponent >= lowest + WINDOW))
        tl.atomic_add(out + exponent, 1, mask=outside, sem="relaxed", scope="cta")
