"""How colours look: lightness, distance, and what people with other colour vision see."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from undertow.views.palette import Colour

Colours = NDArray[np.uint8] | NDArray[np.float64] | Colour
_TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                    [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
_WHITE = np.array([0.95047, 1.0, 1.08883])
# Machado, Oliveira and Fernandes (2009), full severity, for linear red, green and blue.
VISIONS = {
    "usual": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip


def seen(colours: Colours, vision: str) -> NDArray[np.float64]:
    """CIE L*, a*, b* of what somebody with that vision sees."""
    channels = np.asarray(colours, np.float64) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    relative = np.clip(linear @ VISIONS[vision].T, 0, 1) @ _TO_XYZ.T / _WHITE
    roots = np.where(relative > 216 / 24389, np.cbrt(relative), (24389 / 27 * relative + 16) / 116)
    x, y, z = np.moveaxis(roots, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def nearest(colour: Colours, others: Colours, vision: str) -> float:
    """The smallest CIE76 distance; about 2 is just noticeable, 10 is plain."""
    apart = seen(others, vision) - seen(colour, vision)
    return float(np.sqrt((apart**2).sum(-1)).min())
