"""A run in plain lines: for a log, a pipe, or a terminal that cannot be drawn on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from undertow.errors import UndertowError
from undertow.schema import Finding
from undertow.show.terminal.ability import Ability
from undertow.show.terminal.camera import Camera
from undertow.show.terminal.picture import Moment, Picture
from undertow.show.terminal.writing import clean
from undertow.views.report_wording import GLYPHS
from undertow.views.scale import number

_POLL_SECONDS = 0.1
_LINE_SECONDS = 5.0
STILL_ROWS = 24

Write = Callable[[str], object]


def still(picture: Picture, columns: int, rows: int = STILL_ROWS) -> Iterator[str]:
    """The whole run in one picture, without blanks at the ends of lines."""
    steps = picture.camera.steps
    first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (0, 0)
    status = picture.camera.run.status
    for line in picture.lines(Moment(last, first, last, state="" if status == "finished" else status), columns, rows):
        yield line.rstrip()


def progress(camera: Camera, total: int | None = None) -> str:
    """Where a run is, in a few words."""
    steps = camera.steps
    last = int(steps[-1]) if len(steps) else -1
    words = f"{last + 1:,} of {total:,} steps" if total else f"step {last:,}" if len(steps) else "no step yet"
    losses, _ = camera.loss()
    return f"{words} · loss {number(float(losses[-1]))}" if len(losses) else words


def told(finding: Finding) -> str:
    sign = GLYPHS[finding.severity]
    return f"{sign} {finding.severity} {finding.code} at step {finding.detected_step:,}: {finding.summary}"


class Lines:
    """Follows a run in a thread: a line now and then, and one for each finding that asks to act.

    With a `total` number of steps there is a line for each tenth of them, else one every few seconds.
    """

    def __init__(self, camera: Camera, write: Write, ability: Ability, total: int | None = None) -> None:
        self.camera = camera
        self.total = total
        self._out = write
        self._ability = ability
        self._said: set[tuple[str, int]] = set()
        self._due = max(1, (total or 0) // 10)
        self._when = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="undertow-lines", daemon=True)

    def __enter__(self) -> Lines:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def until_it_ends(self) -> None:
        """In the thread of the caller."""
        while True:
            running = self.camera.run.status == "running"
            self.look()
            if not running:
                return
            time.sleep(_POLL_SECONDS * 5)

    def _write(self, line: str) -> None:
        self._out(clean(line, self._ability.unicode))

    def look(self) -> None:
        """Say what is new."""
        try:
            self.camera.refresh()
            for finding in self.camera.findings:
                key = (finding.code, finding.detected_step)
                if finding.severity.is_alarm and key not in self._said:
                    self._said.add(key)
                    self._write(told(finding))
            if self._is_time():
                self._write(progress(self.camera, self.total))
        except (UndertowError, OSError):
            pass  # caught in the middle of a write

    def _is_time(self) -> bool:
        done = len(self.camera.steps)
        if self.total is None:
            now = time.monotonic()
            if not done or now - self._when < _LINE_SECONDS:
                return False
            self._when = now
            return True
        if done < self._due:
            return False
        tenth = max(1, self.total // 10)
        self._due = done - done % tenth + tenth
        return True

    def _follow(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            self.look()
