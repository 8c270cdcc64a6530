"""From inside a training: start the process that draws it, and end it again before anything else happens."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from undertow.show.bars import bar_is_open
from undertow.show.terminal.ability import Ability, ability_of, can_be_drawn_on

_POLL_SECONDS = 0.25
_PATIENCE = 3.0  # seconds that the picture may take to leave
# The process forks once more, so that the training has no child that it did not start.
_PROGRAM = """import os, sys
if os.fork(): os._exit(0)
from undertow.show.terminal.panel import main
main(sys.argv[1])"""


class Order(msgspec.Struct, frozen=True):
    """What a training asks the process that draws it for."""

    folder: str
    title: str
    process_group: int  # of the training: it has the terminal as long as this group is in the foreground
    control: int  # the pipe that speaks or ends when the picture is to leave
    done: int  # the pipe that ends when it has left
    share: float  # of the rows of the terminal
    most: int  # rows
    ability: Ability
    total_steps: int | None = None


class View:
    """A picture of a run below the output of this process. Does nothing where there is no terminal to draw on.

    With `gives_way`, the picture leaves for good as soon as a progress bar is open: the bar owns the line.
    """

    def __init__(
        self,
        folder: Path,
        title: str = "",
        *,
        share: float = 0.4,
        most: int = 14,
        total_steps: int | None = None,
        gives_way: bool = True,
    ) -> None:
        self.is_shown = False
        self._owner = os.getpid()
        self._over = threading.Event()
        self._lock = threading.RLock()  # a signal may ask for the same in the middle of it
        self._gives_way = gives_way
        if not may_be_shown():
            return
        try:
            self._start(folder, title, share, most, total_steps)
        except (OSError, subprocess.SubprocessError):
            return  # no process, no pipe: then no picture
        self.is_shown = True
        if gives_way:
            threading.Thread(target=self._watch_for_bars, name="undertow-view", daemon=True).start()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Returns when the terminal is as it was. In a forked child: nothing, the picture is the parent's."""
        self._over.set()
        if os.getpid() != self._owner:
            return
        with self._lock:
            if not self.is_shown:
                return
            self.is_shown = False
            with contextlib.suppress(OSError):
                os.write(self._control, b"q")
                select.select([self._done], [], [], _PATIENCE)
            for pipe in (self._control, self._done):
                with contextlib.suppress(OSError):
                    os.close(pipe)

    def _start(self, folder: Path, title: str, share: float, most: int, total_steps: int | None) -> None:
        control, self._control = os.pipe()
        self._done, done = os.pipe()
        try:
            where, ability = str(folder.absolute()), ability_of(sys.stderr)
            order = Order(where, title, os.getpgrp(), control, done, share, most, ability, total_steps)
            subprocess.run(
                [sys.executable, "-P", "-c", _PROGRAM, msgspec.json.encode(order).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(control, done),
                process_group=0,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                timeout=_PATIENCE * 10,
                check=True,
            )
        except BaseException:
            os.close(self._control)
            os.close(self._done)
            raise
        finally:
            os.close(control)
            os.close(done)

    def _watch_for_bars(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            if bar_is_open():
                self.close()


def may_be_shown() -> bool:
    """Only on the terminal that this process has in the foreground."""
    stream = sys.stderr
    if not can_be_drawn_on(stream) or bar_is_open():
        return False
    try:
        return stream.fileno() == 2 and os.tcgetpgrp(2) == os.getpgrp()
    except OSError:
        return False
