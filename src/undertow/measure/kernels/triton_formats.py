"""How the Triton programs read each number format, and what they are compiled for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from undertow.measure.kernels.interface import Want
from undertow.measure.kernels.triton_chunks import MERGED_COLUMNS, TALL_MERGED_COLUMNS


@dataclass(frozen=True, slots=True)
class Format:
    """16 bytes at once by each thread."""

    kind: tl.dtype
    bytes: int
    lanes: int
    warps: int


# Registers of a thread, and how many programs run beside each other on a processor with so many: counting exponents
# takes so much work that data are better asked for in advance, for which there must be room.
COUNTING, NOT_COUNTING = (112, 2), (80, 3)

READING = {
    torch.float32: Format(tl.float32, 4, lanes=4, warps=8),
    torch.bfloat16: Format(tl.uint16, 2, lanes=4, warps=8),
    torch.float16: Format(tl.float16, 2, lanes=4, warps=8),
    torch.float64: Format(tl.float64, 8, lanes=4, warps=8),
}

MERGE_CONSTANTS: dict[str, Any] = {
    "COLUMNS": MERGED_COLUMNS, "HEIGHT": 4, "TALL_COLUMNS": TALL_MERGED_COLUMNS, "TALL_HEIGHT": 128,
}  # fmt: skip


def wanted(want: Want) -> dict[str, bool]:
    return {one: bool(want & Want[one]) for one in ("MOMENTS", "EXPONENTS", "SKETCH")}


def programs_for(want: Want) -> int:
    """How many run beside each other on a processor."""
    return (COUNTING if want & Want.EXPONENTS else NOT_COUNTING)[1]
