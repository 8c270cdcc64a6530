"""A real program on a pseudo-terminal, with an emulator that shows what a person would see."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

LIMIT = 90.0  # seconds until a test gives up: generous, because a loaded machine is slow


class Terminal:
    """Starts a command as the foreground process of a terminal of its own."""

    def __init__(
        self, command: Sequence[str], columns: int = 80, rows: int = 24,
        environment: Mapping[str, str] | None = None, folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.screen = pyte.HistoryScreen(columns, rows, history=5000)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        self.code: int | None = None
        surroundings = {name: value for name, value in os.environ.items() if not name.startswith("UNDERTOW_")}
        for name in ("NO_COLOR", "CI", "COLUMNS", "LINES", "COLORTERM"):
            surroundings.pop(name, None)
        surroundings |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1", "PYTHONPATH": "", **(environment or {})}
        ready, go = os.pipe()
        self.process, self.end = pty.fork()
        if self.process == 0:
            os.read(ready, 1)  # until the terminal has its size
            os.chdir(folder or ".")
            os.execvpe(command[0], list(command), surroundings)
        self.resize(columns, rows)
        self.mode = termios.tcgetattr(self.end)
        os.write(go, b"!")
        os.close(ready)
        os.close(go)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if (columns, rows) != (self.screen.columns, self.screen.lines):
            self.screen.resize(rows, columns)

    def press(self, keys: str) -> None:
        os.write(self.end, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process, number)

    def read(self, seconds: float = 0.1) -> bool:
        """Take in what has been written; False once the program has closed the terminal."""
        if not select.select([self.end], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.end, 65536)
        except OSError:  # Linux: the other end is closed
            data = b""
        self.written += data
        self._stream.feed(data)
        return bool(data)

    def until(self, seen: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT
        while not seen():
            if not self.read() or time.monotonic() > deadline:
                if seen():
                    return
                raise AssertionError(f"never saw {what}; the terminal shows:\n" + "\n".join(self.lines))

    def until_text(self, text: str) -> None:
        self.until(lambda: text in self.text, repr(text))

    def until_over(self) -> int:
        """The exit code, negative for a signal."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            self.read(0.05)
            pid, status = os.waitpid(self.process, os.WNOHANG)
            if pid:
                while select.select([self.end], [], [], 0.2)[0] and self.read():
                    pass
                self.code = os.waitstatus_to_exitcode(status)
                return self.code
        raise AssertionError("the program did not end; the terminal shows:\n" + "\n".join(self.lines))

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def history(self) -> list[str]:
        """What has scrolled off, and what is there."""
        gone = ["".join(row[x].data for x in range(self.screen.columns)).rstrip() for row in self.screen.history.top]
        return gone + self.lines

    @property
    def is_restored(self) -> bool:
        """Cursor, wrapping, scrolling and echo are as they were before."""
        margins = self.screen.margins
        whole = margins is None or (margins.top, margins.bottom) == (0, self.screen.lines - 1)
        wraps = pyte.modes.DECAWM in self.screen.mode
        main_screen = self.written.count(b"\x1b[?1049h") == self.written.count(b"\x1b[?1049l")
        return not self.screen.cursor.hidden and wraps and whole and main_screen and self._echoes

    @property
    def _echoes(self) -> bool:
        return termios.tcgetattr(self.end)[3] == self.mode[3]

    def close(self) -> None:
        if self.code is None:
            try:
                os.kill(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        os.close(self.end)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def undertow(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "undertow", *arguments]
