"""What the server does to the allocator, in a process of its own."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys
from undertow.show.web.allocation import give_back_large_arrays
class Info(ctypes.Structure):
    _fields_ = [(str(place), ctypes.c_size_t) for place in range(10)]
library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
if sys.argv[1] == "given back":
    give_back_large_arrays()
library.free(library.malloc(16 << 20))  # from now on, glibc takes 16 MB for usual
before = getattr(library.mallinfo2(), "4")  # bytes in blocks that are mapped one by one
library.malloc(2 << 20)
print(getattr(library.mallinfo2(), "4") - before >= 2 << 20)
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="not a recent glibc"
)
@pytest.mark.parametrize(("how", "is_mapped"), [("as usual", "False"), ("given back", "True")])
def test_large_blocks_stay_mapped_one_by_one(how: str, is_mapped: str) -> None:
    command = [sys.executable, "-c", SCRIPT, how]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == is_mapped
