"""Whose line is running: the frames of the user's program among those of torch and other libraries."""

import itertools
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
_DEMOS = os.path.join(_PACKAGE, "demos") + os.sep  # written as users write their programs
TORCH = str(Path(torch.__file__).parent) + os.sep
_OF_PYTHON = tuple({sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_MOST_FRAMES = 300
_MOST_SITES = 4

OWN, LIBRARY, BELOW = 0, 1, 2  # the user's, a library that calls torch, and torch, Python or Undertow
_kinds: dict[str, int] = {}


class Site(NamedTuple):
    """An expression of a program, as its code object knows it: no file is read for it."""

    file: str
    function: str
    line: int
    end_line: int
    column: int
    end_column: int


def kind_of(code: CodeType) -> int:
    file = code.co_filename
    kind = _kinds.get(file)
    if kind is None:
        kind = _kinds[file] = _kind(file)
    return kind


def _kind(file: str) -> int:
    if file.startswith(_DEMOS):
        return OWN
    if file.startswith(("<frozen", TORCH, _PACKAGE)):
        return BELOW
    if any(part in file for part in _INSTALLED):
        return LIBRARY
    return BELOW if file.startswith(_OF_PYTHON) else OWN


def own_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The user's, the innermost first; without any, those of the library that trains."""
    start, found = frame, False
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        if kind_of(frame.f_code) == OWN:
            found = True
            yield frame
        frame = frame.f_back
    if not found:
        frame = start
        while frame is not None:
            if kind_of(frame.f_code) == LIBRARY:
                yield frame
            frame = frame.f_back


def site_of(frame: FrameType) -> Site:
    code = frame.f_code
    line, end_line, column, end_column = next(
        itertools.islice(code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None)
    )
    first = line or frame.f_lineno
    return Site(
        code.co_filename, code.co_qualname, first, end_line or first, -1 if column is None else column,
        -1 if end_column is None else end_column,
    )  # fmt: skip


def sites_from(frame: FrameType | None) -> tuple[Site, ...]:
    """The user's lines that have led here, the innermost first."""
    return tuple(site_of(one) for one in itertools.islice(own_frames(frame), _MOST_SITES))


def sites_outside(frame: FrameType | None, made: Any) -> tuple[Site, ...]:
    """Those that have called for this object to be made: its own `__init__`, and those of its classes, are no callers.

    What a factory inside a library makes is called for by the innermost line of the user's.
    """
    constructors = {
        getattr(kind.__dict__.get(name), "__code__", None) for kind in type(made).__mro__ for name in _CONSTRUCTING
    }
    callers = (one for one in own_frames(frame) if one.f_code not in constructors)
    return tuple(site_of(one) for one in itertools.islice(callers, _MOST_SITES))


_CONSTRUCTING = ("__init__", "__new__", "__post_init__", "__attrs_post_init__")
