"""A picture of a few thousand pixels as text for a page, without a library for pictures."""

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_EIGHT_BITS, _COLOURS = 8, 2


def data_address(pixels: NDArray[np.uint8]) -> str:
    """Rows × columns × (red, green, blue) as an address that holds the PNG itself."""
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, _EIGHT_BITS, _COLOURS, 0, 0, 0)
    png = _SIGNATURE + _part(b"IHDR", header) + _part(b"IDAT", zlib.compress(lines.tobytes(), 9)) + _part(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
