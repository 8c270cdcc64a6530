"""A process beside a training that draws its run below what the training prints.

It reads the run folder only. The training tells it when to leave through a pipe; when the training dies, the pipe
ends, and the terminal is given back all the same.
"""

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

import msgspec

from undertow.errors import UndertowError
from undertow.run import Run
from undertow.show.terminal.beside import Order
from undertow.show.terminal.camera import Camera
from undertow.show.terminal.margin import Margin
from undertow.show.terminal.picture import Moment, Picture

_LOOK_SECONDS = 0.5
_REST = 20.0  # times as long as a look took: a run of a thousand layers is looked at less often
_MEND_SECONDS = 4.0
_STATUS_SECONDS = 2.0
LEAST_ROWS_ABOVE = 6  # of the terminal, for what the training prints
LEAST_HEIGHT = 8


def height_for(rows: int, share: float, most: int) -> int | None:
    """How many rows the picture gets, None if there is no room for it."""
    height = min(most, int(rows * share), rows - LEAST_ROWS_ABOVE)
    return height if height >= LEAST_HEIGHT else None


class Panel:
    def __init__(self, order: Order, output: int) -> None:
        self._order = order
        self._output = output
        self._margin: Margin | None = None
        self._picture: Picture | None = None
        self._status = "running"
        self._effort = 0.0
        self._asked = self._mended = time.monotonic()

    def stay(self) -> None:
        """Until the training says so, or is no more."""
        try:
            while self._status == "running":
                patience = max(_LOOK_SECONDS, _REST * self._effort)
                if select.select([self._order.control], [], [], patience)[0]:
                    return  # told to, or the training is gone
                began = time.process_time()
                if self._is_ours():
                    self._look()
                else:
                    self._leave()
                self._effort = time.process_time() - began
        finally:
            self._leave()

    def _is_ours(self) -> bool:
        """False while the training is stopped, or in the background: then the terminal is the shell's."""
        return os.tcgetpgrp(self._output) == self._order.process_group

    def _look(self) -> None:
        now = time.monotonic()
        changed = self._refresh()
        if now - self._asked > _STATUS_SECONDS and self._picture is not None:
            self._asked, self._status = now, self._picture.camera.run.status
        columns, rows = os.get_terminal_size(self._output)
        height = height_for(rows, self._order.share, self._order.most)
        if height is None or self._picture is None or not len(self._picture.camera.steps):
            if height is None:
                self._leave()
            return
        if self._margin is None or self._margin.height != height:
            self._leave()
            self._margin = Margin(self._output, height)
        if changed and now - self._mended > _MEND_SECONDS:
            self._mended = now
            self._margin.mend()
        with contextlib.suppress(UndertowError):  # a file was replaced under our eyes: the next look is soon
            self._margin.draw(["", *self._lines(columns, height - 1)], columns, rows)

    def _lines(self, columns: int, rows: int) -> list[str]:
        assert self._picture is not None
        steps = self._picture.camera.steps
        total = self._order.total_steps
        last = int(steps[-1])
        moment = Moment(last, int(steps[0]), last, growing=True)
        if total is not None and total > last:
            moment = Moment(last, int(steps[0]), total - 1)
        return self._picture.lines(moment, columns, rows)

    def _refresh(self) -> bool:
        try:
            if self._picture is None:
                run = Run(Path(self._order.folder))
                self._picture = Picture(Camera(run), self._order.ability, title=self._order.title)
                return True
            return self._picture.camera.refresh()
        except (UndertowError, OSError):
            return False  # caught in the middle of a write

    def _leave(self) -> None:
        if self._margin is not None:
            with contextlib.suppress(OSError):  # the terminal itself may be gone
                self._margin.close()
            self._margin = None


def main(text: str) -> None:
    """`text` is an order in JSON. Signals of the terminal are meant for the training, not for us."""
    for number in (signal.SIGINT, signal.SIGTSTP, signal.SIGTTOU, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(0))
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    with contextlib.suppress(Exception):  # whatever goes wrong here is not worth a word in the training's terminal
        Panel(msgspec.json.decode(text, type=Order), sys.stderr.fileno()).stay()
