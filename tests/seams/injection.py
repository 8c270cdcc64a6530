"""An error of Undertow's own, raised wherever one of its functions is entered.

A trace function sees every call of every thread. One that raises lets the call itself fail: so an error can be put
into any function, closures and methods alike, without knowing it beforehand.
"""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import undertow

PACKAGE = str(Path(undertow.__file__).parent)
UNNAMED = ("<module>", "<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
# What catches errors cannot catch its own. Torch calls these amid the user's backward pass or step.
GUARDS = (
    "GuardedTaps.tap.<locals>.tap",
    "LiveWatch._close",
    "ForwardTap._listen.<locals>.receive",
    "ForwardTap._enter",
    "ForwardTap._leave",
    "_before_step",
    "_after_step",
    "_tell",
    "_tell_of_transformed",
    "_is_outermost",
)


class Seam(NamedTuple):
    """A function of Undertow's, and the part of the run in which it was entered."""

    part: str  # "training", "background", "closing", "child"
    file: str
    function: str

    def __str__(self) -> str:
        return f"{self.part}:{self.file.removesuffix('.py')}:{self.function}"


class InjectedError(RuntimeError):
    """No fault of anybody's."""


class Entries:
    """Calls `entered` whenever a function of Undertow's is entered, in any thread."""

    def __init__(self, entered: Callable[[Seam], None]) -> None:
        self._entered = entered
        self.part = "beginning"

    def __enter__(self) -> "Entries":
        threading.settrace(self._called)
        sys.settrace(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not _is_ours(frame) or code.co_name in UNNAMED or code.co_qualname in GUARDS or not _is_within(frame):
            return
        is_main = threading.current_thread() is threading.main_thread()
        part = self.part if is_main or self.part == "child" else "background"
        self._entered(Seam(part, code.co_filename[len(PACKAGE) + 1 :], code.co_qualname))


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


def _is_within(frame: FrameType) -> bool:
    """Called by another function of Undertow's, however indirectly: nobody can guard the first one."""
    caller = frame.f_back
    while caller is not None and not _is_ours(caller):
        caller = caller.f_back
    return caller is not None


class Injection:
    """Raises once, when a seam is entered for the `nth` time."""

    def __init__(self, seam: Seam, nth: int = 1) -> None:
        self._seam = seam
        self._left = nth
        self.has_raised = False

    def __call__(self, entered: Seam) -> None:
        if self.has_raised or entered != self._seam:
            return
        self._left -= 1
        if self._left <= 0:
            self.has_raised = True
            raise InjectedError(f"at {self._seam}")
