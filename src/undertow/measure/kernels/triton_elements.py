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
def find_chunk(addresses, tensor_of, start_of, length_of, order, BYTES: tl.constexpr):
    chunk = tl.load(order).to(tl.int64)
    start = tl.load(start_of + chunk)
    return chunk, start, tl.load(length_of + chunk), tl.load(addresses + tl.load(tensor_of + chunk)) + start * BYTES


@triton.jit
def guess(address, length, FORMAT: tl.constexpr):
    """A pivot near the mean, a scale near one over the spread and the window's first exponent, from 1024 elements."""
    step = tl.maximum(length // 1024 * 128, 128)
    place = tl.arange(0, 8)[:, None] * step + tl.arange(0, 128)[None, :]
    present = place < length
    x = wide(tl.load(address.to(tl.pointer_type(FORMAT)) + place, mask=present, other=0))
    finite = present & (tl.abs(x) < INFINITY)
    share = 1.0 / tl.maximum(tl.sum(finite.to(tl.int32)), 1).to(tl.float64)
    pivot = tl.sum(tl.where(finite, x.to(tl.float64) * share, 0.0)).to(tl.float32)
    narrow = tl.where(finite, x.to(tl.float32), 0.0)
    spread = tl.max(tl.where(finite, tl.abs(narrow - pivot), 0.0))
    spread = tl.where(spread > 0.0, spread, tl.max(tl.abs(narrow)))
    spread = tl.where(spread > 0.0, spread, USUAL_SPREAD)  # nothing but zeros in the sample
    power = 254 - ((spread.to(tl.int32, bitcast=True) >> 23) & 255)
    scale = (tl.minimum(tl.maximum(power, 1), 253) << 23).to(tl.float32, bitcast=True)
    exponent = (narrow.to(tl.int32, bitcast=True) >> 23) & 255
    usual = tl.sum(exponent) // tl.maximum(tl.sum((exponent > 0).to(tl.int32)), 1)
    usual = tl.where(usual > 0, usual, USUAL_EXPONENT)
    return pivot, scale, tl.minimum(tl.maximum(usual - 22, 1), 223)


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
