"""Colours, before any medium knows how to show them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Nine stops of a scale that grows evenly in lightness, from deep violet over teal to yellow, so that it
# still reads in grey and with any colour vision; between them colours are mixed linearly.
_STOPS = np.array(
    [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141),
     (39, 173, 129), (92, 200, 99), (170, 220, 50), (253, 231, 37)], np.float64,
)  # fmt: skip

Colour = tuple[int, int, int]

NONFINITE: Colour = (214, 0, 147)
NOT_SAMPLED: Colour = (110, 110, 110)


def sequential(levels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Red, green and blue for levels from 0 to 1; the last axis is the colour."""
    places = np.clip(np.nan_to_num(levels.astype(np.float64)), 0, 1) * (len(_STOPS) - 1)
    channels = [np.interp(places, np.arange(len(_STOPS)), _STOPS[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)
