"""Counting the exponents of a chunk in registers, 32 counters to a word.

An element becomes a word with one bit set, at its exponent modulo 32. Words are added bit by bit, as logic gates do it:
sixteen of them take fifteen full adders of two instructions each, and leave one word of carries, each of which stands
for sixteen elements and is counted in a byte. The 32 exponents of a window around the usual ones can be told apart
that way. What lies outside, or is zero, is found in a branch that is seldom taken, in NVIDIA's machine code, or else by
a second look (`count_outside`), and moved to where it belongs.
"""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803, N806
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from undertow.measure.kernels.triton_elements import wide

WINDOW = tl.constexpr(32)


@triton.jit
def lanes_of(x):
    """The four columns of a tensor, each thread's own."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def add_words(a, b, c):
    """Sum and carry of three bits, in all 32 places."""
    return a ^ b ^ c, (a & b) | (a & c) | (b & c)


@triton.jit
def add_row(x, ones, twos, PTX: tl.constexpr):
    """Also the carry, whose bits stand for four elements each."""
    exponent = x.to(tl.uint32, bitcast=True) >> 23
    if PTX:
        bit = tl.inline_asm_elementwise(
            "shf.l.wrap.b32 $0, 0, 1, $1;", "=r,r", [exponent], dtype=tl.uint32, is_pure=True, pack=1
        )
    else:
        bit = tl.full(x.shape, 1, tl.uint32) << (exponent & 31)
    first, second, third, fourth = lanes_of(bit)
    ones, low = add_words(ones, first, second)
    ones, high = add_words(ones, third, fourth)
    twos, carry = add_words(twos, low, high)
    return ones, twos, carry


@triton.jit
def cut(x, factor, offset):
    """The magnitude of x, times a factor, plus an offset, cut to 0.0 … 1.0; 0.0 also for what is not a number."""
    none = tl.zeros(x.shape, tl.float32)
    return tl.inline_asm_elementwise(
        "{ .reg .f32 a; abs.f32 a, $1; fma.rn.sat.f32 $0, a, $2, $3; }",
        "=r,r,r,r", [x, none + factor, none + offset], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def is_nonzero(x):
    """1.0 or 0.0: infinity times zero is not a number."""
    return cut(x, float("inf"), 0.0)


@triton.jit
def reaches(x, exponent):
    """1.0 or 0.0: the last bit below two to the power of an exponent makes a difference of one. At least 24."""
    return cut(x, ((278 - exponent) << 23).to(tl.float32, bitcast=True), 1.0 - 16777216.0)


@triton.jit
def spread_bits(word):
    """Eight words of four bytes, each byte 0 or 1."""
    halves = tl.join(word, word >> 4)
    quarters = tl.join(halves, halves >> 2)
    return tl.join(quarters, quarters >> 1) & 0x01010101


@triton.jit
def tally(ones, twos, fours, eights, bytes):
    """How often each exponent modulo 32 was seen by any thread, none of which has seen more than 2047 elements."""
    THREADS: tl.constexpr = ones.shape[0]
    low = spread_bits(ones) + spread_bits(twos) * 2 + spread_bits(fours) * 4 + spread_bits(eights) * 8
    even = (bytes & 0x00FF00FF) * 16 + (low & 0x00FF00FF)
    odd = ((bytes >> 8) & 0x00FF00FF) * 16 + ((low >> 8) & 0x00FF00FF)
    pairs = tl.sum(tl.reshape(tl.join(even, odd), (THREADS // 32, 32, 2, 2, 2, 2)), 1)  # of 32 threads: fits 16 bits
    counts = tl.sum(tl.join(pairs & 0xFFFF, pairs >> 16), 0)
    return tl.reshape(counts, (WINDOW,)).to(tl.int32)


@triton.jit
def exponent_of_tally(lowest):
    """Which exponent of the window each of the counts belongs to: bytes of a word are eight places apart."""
    index = tl.arange(0, WINDOW)
    place = (index >> 2) + 8 * ((index >> 1) & 1) + 16 * (index & 1)
    return lowest + ((place - lowest) & 31)


@triton.jit
def count_outside(pointer, length, lowest, out, LANES: tl.constexpr):
    """A second look, at what was counted where its last five bits belong in the window. Zeros are known already."""
    offsets = tl.arange(0, 1024 // LANES)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    for row in range((length + 1023) // 1024):
        x = wide(tl.load(pointer + row * 1024 + offsets, mask=row * 1024 + offsets < length, other=0))
        exponent = (x.to(tl.int32, bitcast=True) >> 23) & 255
        outside = (x != 0.0) & ((exponent < lowest) | (exponent >= lowest + WINDOW))
        tl.atomic_add(out + exponent, 1, mask=outside, sem="relaxed", scope="cta")
        tl.atomic_add(out + lowest + ((exponent - lowest) & 31), -1, mask=outside, sem="relaxed", scope="cta")
