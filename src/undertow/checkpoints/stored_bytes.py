"""Reading files that others may change: no waiting, no mapping, and no more memory than the file has bytes.

A map of a file that is cut short ends the process; a read says that it got too little.
"""

import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undertow.checkpoints.checkpoint import UnreadableCheckpointError


def open_regular(path: Path) -> BufferedReader:
    """Opening a pipe would wait for whoever writes to it, and a device has no end."""

    def opener(name: str, flags: int) -> int:
        handle = os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        raise UnreadableCheckpointError(f"{path} is no regular file", way_out="Give a checkpoint file or folder")

    return open(path, "rb", opener=opener)


def size_of(file: BufferedReader) -> int:
    return os.fstat(file.fileno()).st_size


def read_numbers(path: Path, dtype: np.dtype[Any], count: int, begin: int) -> NDArray[Any]:
    """Of a file that was looked at before; raises EOFError where it has become shorter."""
    with open_regular(path) as file:
        if size_of(file) < begin + count * dtype.itemsize:
            raise EOFError
        numbers = np.empty(count, dtype)
        file.seek(begin)
        if count and file.readinto(numbers.view(np.uint8).data) < numbers.nbytes:
            raise EOFError
        return numbers
