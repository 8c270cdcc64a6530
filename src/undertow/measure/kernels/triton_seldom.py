"""NVIDIA's machine code for what a tile seldom holds: zeros, and exponents outside the window of `triton_tally`.

A thread looks at its sixteen elements of a tile only when not all of them reach the window's lower end, or when it has
seen one above the upper end. Triton has no branches for single threads.
"""

# What follows is Triton's language rather than Python: constants are capitals, types and branches are its own.
# ruff: noqa: N803, SIM300
# pyright: basic, reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from undertow.measure.kernels.triton_tally import lanes_of

# Operands: zeros, zeros before, how many are not too small, the largest magnitude, the lowest exponent, where the
# counters of all exponents begin; then an address, or sixteen elements.
_BEGIN = """{
.reg .pred p, q, above; .reg .b32 n, a, b, e; .reg .f32 s; .reg .b64 d;
mov.b32 n, $1; shr.u32 e, $3, 23; sub.u32 e, e, $4; setp.gt.s32 above, e, 31;
setp.lt.or.f32 p, $2, 0f41800000, above; @!p bra DONE;
"""
_COUNT_ZERO = "and.b32 a, {0}, 0x7FFFFFFF; setp.eq.u32 q, a, 0; @q add.u32 n, n, 1;"
_IF_ONLY_ZEROS = """
sub.u32 a, n, $1; cvt.rn.f32.u32 s, a; add.f32 s, s, $2; setp.lt.or.f32 p, s, 0f41800000, above; @!p bra DONE;
"""
_MOVE = """
and.b32 a, {0}, 0x7FFFFFFF; shr.u32 e, a, 23; sub.u32 b, e, $4; setp.ne.u32 q, a, 0; setp.gt.and.u32 p, b, 31, q;
mad.wide.u32 d, e, 4, $5; @p red.global.add.s32 [d], 1;
and.b32 b, b, 31; add.u32 b, b, $4; mad.wide.u32 d, b, 4, $5; @p red.global.add.s32 [d], -1;
"""
_END = "DONE: mov.b32 $0, n; }"
_READ = {
    "float32": "ld.global.v4.b32 {{x{0}0, x{0}1, x{0}2, x{0}3}}, [$6+{1}];",
    "bfloat16": "ld.global.v2.b32 {{x{0}1, x{0}3}}, [$6+{1}]; shl.b32 x{0}0, x{0}1, 16; shl.b32 x{0}2, x{0}3, 16;"
    " and.b32 x{0}1, x{0}1, 0xFFFF0000; and.b32 x{0}3, x{0}3, 0xFFFF0000;",
    "float16": "ld.global.v4.b16 {{h0, h1, h2, h3}}, [$6+{1}]; cvt.f32.f16 x{0}0, h0; cvt.f32.f16 x{0}1, h1;"
    " cvt.f32.f16 x{0}2, h2; cvt.f32.f16 x{0}3, h3;",
}
_SIXTEEN = [f"x{row}{lane}" for row in range(4) for lane in range(4)]
_OPERANDS = "=r,r,r,r,r,l"


def _look(elements: list[str]) -> str:
    zeros = " ".join(map(_COUNT_ZERO.format, elements))
    return zeros + _IF_ONLY_ZEROS + "".join(map(_MOVE.format, elements)) + _END


def _rereading(kind: str, row_bytes: int) -> tl.constexpr:
    reads = " ".join(_READ[kind].format(row, row * row_bytes) for row in range(4))
    return tl.constexpr(_BEGIN + f".reg .b16 h<4>; .reg .b32 {', '.join(_SIXTEEN)}; {reads}" + _look(_SIXTEEN))


REREADING_FLOAT32 = _rereading("float32", 4096)
REREADING_BFLOAT16 = _rereading("bfloat16", 2048)
REREADING_FLOAT16 = _rereading("float16", 2048)
REREADING_OPERANDS = tl.constexpr(_OPERANDS + ",l")
GIVEN = tl.constexpr(_BEGIN + _look([f"${operand}" for operand in range(6, 22)]))
GIVEN_OPERANDS = tl.constexpr(_OPERANDS + ",r" * 16)


@triton.jit
def count_seldom_again(zeros, enough, largest, lowest, out, address, FORMAT: tl.constexpr):
    """The elements are read again: to keep them until now would take registers."""
    lowest, out = (zeros ^ zeros) + lowest.to(tl.uint32), (zeros ^ zeros).to(tl.int64) + out.to(tl.int64)
    return tl.inline_asm_elementwise(
        REREADING_FLOAT32 if FORMAT == tl.float32 else REREADING_BFLOAT16 if FORMAT == tl.uint16 else REREADING_FLOAT16,
        REREADING_OPERANDS, [zeros, enough, largest, lowest, out, address], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def count_seldom(zeros, enough, largest, lowest, out, x0, x1, x2, x3):
    a0, a1, a2, a3 = lanes_of(x0)
    b0, b1, b2, b3 = lanes_of(x1)
    c0, c1, c2, c3 = lanes_of(x2)
    d0, d1, d2, d3 = lanes_of(x3)
    lowest, out = (zeros ^ zeros) + lowest.to(tl.uint32), (zeros ^ zeros).to(tl.int64) + out.to(tl.int64)
    return tl.inline_asm_elementwise(
        GIVEN, GIVEN_OPERANDS,
        [zeros, enough, largest, lowest, out, a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3],
        dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip
