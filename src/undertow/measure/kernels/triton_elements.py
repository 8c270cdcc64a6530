"""What the Triton programs share: finding a chunk, guessing what it is like, signs, and storing its results."""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803, RET505
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from undertow.measure import signs

WORD_OFFSET = tl.constexpr(signs.WORD_OFFSET)
FIRST_FACTOR = tl.constexpr(signs.FIRST_FACTOR)
SECOND_FACTOR = tl.constexpr(signs.SECOND_FACTOR)
INFINITY = tl.constexpr(float("inf"))
USUAL_SPREAD = tl.constexpr(2.0**-20)  # of gradients
USUAL_EXPONENT = tl.constexpr(107)


@triton.jit
def find_chunk(addresses, record, BYTES: tl.constexpr):
    """Its number, where it begins in its tensor, its length and its address."""
    chunk, tensor = tl.load(record), tl.load(record + 1)
    start, length = tl.load(record + 2), tl.load(record + 3).to(tl.int32)
    return chunk, start, length, tl.load(addresses + tensor) + start * BYTES


@triton.jit
def guess(address, length, FORMAT: tl.constexpr):
    """A pivot near the mean, a scale near one over the spread and the window's first exponent, from 1024 elements.

    And whether all of these are finite. What is summed is summed together: threads wait for each other at every sum.
    """
    step = tl.maximum(length // 1024 * 128, 128)
    place = tl.reshape(tl.arange(0, 8)[:, None] * step + tl.arange(0, 128)[None, :], (1024,))
    present = place < length
    x = wide(tl.load(address.to(tl.pointer_type(FORMAT)) + place, mask=present, other=0))
    finite = present & (tl.abs(x) < INFINITY)
    x = tl.where(finite, x, 0.0)
    narrow = x.to(tl.float32)
    exponent = (narrow.to(tl.int32, bitcast=True) >> 23) & 255
    means = tl.join(x.to(tl.float64) * 0.0009765625, finite.to(tl.float64))
    exponents = tl.join(exponent.to(tl.float64), (exponent > 0).to(tl.float64))
    means, exponents = tl.split(tl.sum(tl.join(means, exponents), 0))
    mean, count = tl.split(means)
    exponents, normal = tl.split(exponents)
    extremes = tl.join(tl.where(finite, narrow, INFINITY), tl.where(finite, -narrow, INFINITY))
    strange = tl.where(present & (finite == 0), -1.0, 0.0)
    extremes, strange = tl.split(tl.min(tl.join(extremes, tl.join(strange, strange)), 0))
    low, high = tl.split(extremes)
    strange, _ = tl.split(strange)
    pivot = (mean * (1024.0 / tl.maximum(count, 1.0))).to(tl.float32)
    spread = tl.maximum(-high - pivot, pivot - low)
    spread = tl.where(spread > 0.0, spread, tl.maximum(tl.abs(low), tl.abs(high)))
    spread = tl.where((spread > 0.0) & (count > 0.0), spread, USUAL_SPREAD)  # nothing but zeros in the sample
    power = 254 - ((spread.to(tl.int32, bitcast=True) >> 23) & 255)
    scale = (tl.minimum(tl.maximum(power, 1), 253) << 23).to(tl.float32, bitcast=True)
    usual = (exponents / tl.maximum(normal, 1.0)).to(tl.int32)
    usual = tl.where(usual > 0, usual, USUAL_EXPONENT)
    return pivot, scale, tl.minimum(tl.maximum(usual - 16, 24), 223), strange == 0.0


@triton.jit
def wide(x):
    """As float32, or float64 if it is that. The bits of a bfloat16 are the upper half of a float32's."""
    if x.dtype == tl.uint16:
        return (x.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif x.dtype == tl.float16:
        return x.to(tl.float32)
    else:
        return x


@triton.jit
def mix(index):
    """Thirty-two signs, as `measure.signs` defines them."""
    word = index.to(tl.uint32) + WORD_OFFSET
    word = (word ^ (word >> 16)) * FIRST_FACTOR
    word = (word ^ (word >> 13)) * SECOND_FACTOR
    return word ^ (word >> 16)


@triton.jit
def store_sketch(out, sketch, LANES: tl.constexpr):
    places = tl.arange(0, 1024 // LANES)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    tl.store(out + places, sketch)


@triton.jit
def store_moments(
    out, number, count, nan, positive, negative, zero, low, high, pivot, one, two, three, four, total, squares
):
    """One column after the other, each over all chunks; in the order of `Moment`, with the finite ones as COUNT."""
    tl.store(out, count)
    tl.store(out + number, nan)
    tl.store(out + number * 2, positive)
    tl.store(out + number * 3, negative)
    tl.store(out + number * 4, zero)
    tl.store(out + number * 5, low)
    tl.store(out + number * 6, high)
    tl.store(out + number * 7, pivot)
    tl.store(out + number * 8, one)
    tl.store(out + number * 9, two)
    tl.store(out + number * 10, three)
    tl.store(out + number * 11, four)
    tl.store(out + number * 12, total)
    tl.store(out + number * 13, squares)
