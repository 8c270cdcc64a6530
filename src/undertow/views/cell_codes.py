"""Numbers for a picture in sixteen bits: the upper half of a float32, with a few NaNs that say why there is no number.

Eight bits of precision are more than an eye can tell apart, every magnitude and sign survives, and a table of 65,536
colours turns a picture of such codes into pixels at once.
"""

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint16]

INFINITE = 0x7F80
NOT_A_NUMBER = 0x7FC0  # measured, and not finite
NOT_SAMPLED = 0x7FC1
FROZEN = 0x7FC2
NO_GRADIENT = 0x7FC3
_LARGEST = 0x7F7F
_SIGN = 0x8000


def encode(values: NDArray[np.float32]) -> Codes:
    """Rounded to the nearest code; NaN becomes "not sampled". What is not zero stays so, what is finite too."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    nearest = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    sign, size = nearest & np.uint16(_SIGN), nearest & np.uint16(~_SIGN & 0xFFFF)
    finite = np.isfinite(values)
    size = np.where(finite & (size > _LARGEST), np.uint16(_LARGEST), size)
    size = np.where(finite & (size == 0) & (values != 0), np.uint16(1), size)
    codes = np.where(size == 0, np.uint16(0), sign | size)  # there is one zero
    return np.where(np.isnan(values), np.uint16(NOT_SAMPLED), codes)


def decode(codes: Codes) -> NDArray[np.float32]:
    """The numbers; NaN for every code that says there is none."""
    return (codes.astype(np.uint32) << 16).view(np.float32)
