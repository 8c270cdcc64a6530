"""Colours, before any medium knows how to show them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.schema.seeds.flow import ColorScheme

# Nine stops of a scale that grows evenly in lightness, from deep violet over teal to yellow, so that it
# still reads in grey and with any colour vision; between them colours are mixed linearly.
_STOPS = np.array(
    [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141),
     (39, 173, 129), (92, 200, 99), (170, 220, 50), (253, 231, 37)], np.float64,
)  # fmt: skip

# Two hues that every eye tells apart, through a light grey that is neither.
_DIVERGING = np.array(
    [(5, 72, 132), (52, 120, 182), (129, 178, 216), (201, 221, 236), (243, 243, 242),
     (250, 216, 183), (241, 164, 96), (208, 105, 24), (140, 60, 4)], np.float64,
)  # fmt: skip
_COLOUR_BLIND = np.array(
    [(0, 34, 78), (18, 53, 112), (59, 73, 108), (87, 93, 109), (112, 113, 115),
     (138, 134, 120), (166, 157, 117), (196, 181, 108), (254, 232, 56)], np.float64,
)  # fmt: skip
_HIGH_CONTRAST = np.array(
    [(0, 0, 0), (58, 0, 64), (122, 4, 82), (181, 30, 60), (224, 76, 24),
     (246, 130, 4), (250, 184, 40), (250, 232, 130), (255, 255, 255)], np.float64,
)  # fmt: skip
_MONOCHROME = np.array([(16, 16, 16), (245, 245, 245)], np.float64)

# The palettes of the original: dark is little, light is much, evenly, in every one of them.
SEQUENTIAL = {
    ColorScheme.DEFAULT: _STOPS,
    ColorScheme.HIGH_CONTRAST: _HIGH_CONTRAST,
    ColorScheme.COLOR_BLIND: _COLOUR_BLIND,
    ColorScheme.MONOCHROME: _MONOCHROME,
}

Colour = tuple[int, int, int]

NONFINITE: Colour = (214, 0, 147)
NOT_SAMPLED: Colour = (110, 110, 110)


FROZEN: Colour = (74, 94, 120)
NO_GRADIENT: Colour = (150, 84, 50)
ZERO: Colour = (20, 18, 24)


def sequential(levels: NDArray[np.float32], scheme: ColorScheme = ColorScheme.DEFAULT) -> NDArray[np.uint8]:
    """Red, green and blue for levels from 0 to 1; the last axis is the colour."""
    return _mix(levels, SEQUENTIAL[scheme])


def diverging(levels: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The same, from blue over a light grey at 0.5 to orange."""
    return _mix(levels, _DIVERGING)


def _mix(levels: NDArray[np.float32], stops: NDArray[np.float64]) -> NDArray[np.uint8]:
    places = np.clip(np.nan_to_num(levels.astype(np.float64)), 0, 1) * (len(stops) - 1)
    channels = [np.interp(places, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)
