"""Counters of exponents in shared memory, a column of its own for every thread: NVIDIA's machine code only.

Counting in registers takes about seventeen whole-number operations an element. Here an element costs its place in
the window and one addition in shared memory that no other thread touches, so that nothing waits for anything.
The window has `WINDOW` counters; one more takes what lies outside and is never read.
"""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

WINDOW = tl.constexpr(32)


@triton.jit
def private_counters(places, THREADS: tl.constexpr):
    """Where the counters begin, all of them zero, and where each thread's do."""
    tl.static_assert(THREADS == 256)  # 33 counters of 256 threads, four bytes each
    base = tl.inline_asm_elementwise(
        "{ .shared .align 16 .b8 counters[33792]; mov.u32 $0, counters; }",
        "=r,r", [tl.arange(0, THREADS)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    base = tl.max(base, 0)
    _ = tl.inline_asm_elementwise(
        "st.shared.u32 [$1], 0; mov.u32 $0, 0;",
        "=r,r", [_all_counters(base, THREADS)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    tl.debug_barrier()
    return base, base + places * 4


@triton.jit
def count_privately(x, counters, lowest, THREADS: tl.constexpr):
    exponent = (x.to(tl.uint32, bitcast=True) >> 23) & 255
    place = tl.minimum(exponent - lowest.to(tl.uint32), WINDOW).to(tl.int32)  # below the window wraps to far above
    _ = tl.inline_asm_elementwise(
        "red.shared.add.u32 [$1], 1; mov.u32 $0, 0;",
        "=r,r", [counters + place * (4 * THREADS)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def private_histogram(base, THREADS: tl.constexpr):
    tl.debug_barrier()
    counts = tl.inline_asm_elementwise(
        "ld.shared.u32 $0, [$1];",
        "=r,r", [_all_counters(base, THREADS)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    return tl.sum(counts, 1)


@triton.jit
def _all_counters(base, THREADS: tl.constexpr):
    """A row for every place in the window: neighbours in it lie in different banks of the memory."""
    return base + tl.arange(0, WINDOW)[:, None] * (4 * THREADS) + tl.arange(0, THREADS)[None, :] * 4
