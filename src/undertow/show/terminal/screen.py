"""The whole terminal for a while: drawn on line by line, and given back as it was, whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

from undertow.show.terminal.writing import write, write_at_once

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # other screen, no cursor, no wrapping
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)
_ESCAPE_SECONDS = 0.05  # the rest of a key that begins with escape arrives within this time

# What a terminal sends for keys.
_KEYS = {
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
    "[H": "home", "[F": "end", "OH": "home", "OF": "end", "[1~": "home", "[4~": "end", "[7~": "home", "[8~": "end",
    "[5~": "page up", "[6~": "page down", "[Z": "back tab", "[3~": "delete",
    "[1;2C": "page down", "[1;2D": "page up", "[1;5C": "page down", "[1;5D": "page up",
}  # fmt: skip
_SINGLE = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace", "\x1b": "escape",
    "\x03": "interrupt", "\x1a": "suspend", "\x0c": "redraw", " ": "space",
}  # fmt: skip
_ESCAPE = re.compile(r"\x1b(\[[0-9;<>?]*[ -/]*[@-~]|O[@-~])")


class EndedBySignalError(BaseException):
    """Raised wherever we are, so that the terminal is given back on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Screen:
    """A context. Keys come from stdin if it is a terminal; Ctrl-C is a KeyboardInterrupt as everywhere."""

    def __init__(self, output: int, keyboard: int | None = None) -> None:
        self._output = output
        self._keyboard = keyboard
        self._mode: list[Any] | None = None
        self._drawn: list[str] = []
        self._size = (0, 0)
        self._handlers: dict[int, Any] = {}
        self._wake, self._waker = os.pipe()
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        self._former_waker = -1

    @classmethod
    def here(cls) -> Screen:
        """On stdout, with the keys of stdin."""
        return cls(sys.stdout.fileno(), sys.stdin.fileno() if sys.stdin and sys.stdin.isatty() else None)

    @property
    def has_keys(self) -> bool:
        return self._keyboard is not None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        columns, rows = os.get_terminal_size(self._output)
        return max(1, columns), max(1, rows)

    def __enter__(self) -> Screen:
        self._former_waker = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in _ENDINGS:
            self._handlers[number] = signal.signal(number, _raise_ended)
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, _nothing)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        try:
            self._take()
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        if isinstance(error, EndedBySignalError):
            signal.signal(error.number, signal.SIG_DFL)
            os.kill(os.getpid(), error.number)

    def draw(self, lines: Sequence[str]) -> None:
        """Only lines that differ from those before are written, in one go."""
        size = self.size
        if size != self._size:
            self._size, self._drawn = size, []
        rows = size[1]
        before = self._drawn
        out = [] if before else ["\x1b[2J"]
        wanted = [*lines[:rows], *[""] * (rows - len(lines))]
        for row, line in enumerate(wanted):
            if row >= len(before) or before[row] != line:
                out.append(f"\x1b[{row + 1};1H\x1b[K{line}\x1b[0m")
        if out:
            write_at_once(self._output, "".join(out))
        self._drawn = wanted

    def forget(self) -> None:
        """The next picture is drawn whole."""
        self._drawn = []

    def wait(self, seconds: float | None) -> list[str]:
        """Keys pressed, at once when there are any; nothing when the time is over or the size has changed."""
        sources = [self._wake] if self._keyboard is None else [self._wake, self._keyboard]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 1024)
        if self._keyboard is None or self._keyboard not in ready:
            return []
        data = os.read(self._keyboard, 4096)
        if not data:  # the terminal has gone
            raise EndedBySignalError(signal.SIGHUP)
        if data == b"\x1b" and select.select([self._keyboard], [], [], _ESCAPE_SECONDS)[0]:
            data += os.read(self._keyboard, 4096)
        return keys_in(data.decode("utf-8", "replace"))

    def _take(self) -> None:
        if self._keyboard is not None:
            self._mode = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard, termios.TCSANOW)
        write(self._output, _ENTER)
        self._drawn = []

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            write(self._output, _LEAVE)
        if self._keyboard is not None and self._mode is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._mode)

    def _give_back(self) -> None:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop us halfway
        try:
            self._leave()
        finally:
            signal.set_wakeup_fd(self._former_waker)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.signal(signal.SIGINT, interrupt)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: the terminal is the shell's until we are called back."""
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self._take()


def _raise_ended(number: int, frame: FrameType | None) -> None:
    raise EndedBySignalError(number)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The wake-up pipe has been told already."""


def keys_in(text: str) -> list[str]:
    """Names of keys, or the characters themselves. A sequence that means nothing here is passed over whole."""
    found: list[str] = []
    place = 0
    while place < len(text):
        match = _ESCAPE.match(text, place)
        if match is not None:
            place = match.end()
            name = _KEYS.get(match[1])
            if name is not None:
                found.append(name)
            continue
        letter = text[place]
        place += 1
        if letter in _SINGLE:
            found.append(_SINGLE[letter])
        elif letter.isprintable():
            found.append(letter)
    return found
