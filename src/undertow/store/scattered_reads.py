"""Many small pieces of a file, read with as few calls as is sensible."""

import os

import numpy as np
from numpy.typing import NDArray

# Reading on over a gap of this size takes about as long as one more call to the system.
_NARROW_GAP = 1 << 13
_LARGEST_READ = 1 << 20


def read_pieces(file: int, places: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """(places × size) bytes of an open file. Raises EOFError where it ends before one of them does."""
    out = np.empty((len(places), size), np.uint8)
    if not out.size:
        return out
    gaps = np.diff(places) - size
    near = (gaps >= 0) & (gaps <= _NARROW_GAP) & (np.diff(places // _LARGEST_READ) == 0)
    begins = np.flatnonzero(np.concatenate([[True], ~near])).tolist()
    for first, end in zip(begins, [*begins[1:], len(places)]):
        start = int(places[first])
        if end - first == 1:
            _fill(file, out[first], start)
            continue
        steps = places[first:end] - start
        span = np.empty(int(steps[-1]) + size, np.uint8)
        _fill(file, span, start)
        if len(span) == (end - first) * size:
            out[first:end] = span.reshape(-1, size)
        else:
            out[first:end] = np.lib.stride_tricks.sliding_window_view(span, size)[steps]
    return out


def _fill(file: int, target: NDArray[np.uint8], place: int) -> None:
    if os.preadv(file, [target.data], place) < len(target):
        raise EOFError
