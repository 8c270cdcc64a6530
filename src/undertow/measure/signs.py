"""The signs of a sketch: bit (i mod 32) of a well-mixed word of i div 32, the same in every kernel."""

import numpy as np
from numpy.typing import NDArray

WORD_OFFSET = 0x9E3779B9  # so that the first word, too, is mixed
FIRST_FACTOR = 0x85EBCA6B
SECOND_FACTOR = 0xC2B2AE35


def sign_words(index: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Thirty-two signs for each index of a group of 32 elements."""
    word = index + np.uint32(WORD_OFFSET)
    word = (word ^ (word >> np.uint32(16))) * np.uint32(FIRST_FACTOR)
    word = (word ^ (word >> np.uint32(13))) * np.uint32(SECOND_FACTOR)
    return word ^ (word >> np.uint32(16))


def signs(index: NDArray[np.int64]) -> NDArray[np.float64]:
    """+1 or −1 for each place in a flattened tensor."""
    words = sign_words((index // 32).astype(np.uint32))
    bits = (words >> (index % 32).astype(np.uint32)) & np.uint32(1)
    return 1.0 - 2.0 * bits.astype(np.float64)
