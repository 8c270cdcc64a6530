"""The library for linear algebra that numpy's wheels bring along: what numpy itself offers no way to.

Systems where numpy has another one (Accelerate on a Mac, MKL, a distribution's own) are served by numpy alone.
"""

from __future__ import annotations

import ctypes
import glob
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class OpenBlas:
    """`prefix` and `suffix` stand around every name in it; its integers are `integer`."""

    library: ctypes.CDLL
    prefix: str
    suffix: str

    @property
    def integer(self) -> type[Any]:
        return ctypes.c_int64 if self.suffix else ctypes.c_int32

    def control(self, name: str) -> Callable[..., Any] | None:
        """A function of its own, such as `get_num_threads`."""
        return getattr(self.library, f"{self.prefix}openblas_{name}{self.suffix}", None)

    def lapack(self, name: str) -> Callable[..., Any] | None:
        """A routine of LAPACK, called as from Fortran: everything by reference."""
        return getattr(self.library, f"{self.prefix}{name}_{self.suffix}", None)


@cache
def openblas() -> OpenBlas | None:
    folder = os.path.join(os.path.dirname(os.path.dirname(np.__file__)), "numpy.libs")
    for path in sorted(glob.glob(os.path.join(folder, "lib*openblas*"))):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix in ("scipy_", ""):
            for suffix in ("64_", ""):
                found = OpenBlas(library, prefix, suffix)
                if found.control("get_num_threads") is not None and found.control("set_num_threads") is not None:
                    return found
    return None
