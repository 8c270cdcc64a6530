"""Memory of arrays that come and go is given back to the system."""

import contextlib
import ctypes

_MMAP_THRESHOLD = -3  # the parameter's number in malloc.h
_LARGE = 1 << 17  # bytes: where glibc begins


def give_back_large_arrays() -> None:
    """Where the C library is glibc. Whenever a large block is freed, it takes that size for usual and no longer maps
    such blocks one by one: arrays of a request then lie between those that stay, and leave holes that only grow with
    the runs. A size that is set stays. For a process of our own.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)
