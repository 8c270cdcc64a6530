"""Plays a run on the whole terminal: follows one that is being written, replays one that is over."""

import time

from undertow.errors import UndertowError
from undertow.run import Run
from undertow.schema.seeds.flow_records import ColorScheme
from undertow.show.terminal.ability import LEAST_COLUMNS, LEAST_ROWS, Ability
from undertow.show.terminal.camera import Camera
from undertow.show.terminal.ink import LETTERS, PLAIN_LETTERS
from undertow.show.terminal.picture import Picture
from undertow.show.terminal.playback import HELP, Playback
from undertow.show.terminal.screen import Screen
from undertow.show.terminal.writing import BOLD, Writing
from undertow.views.palette import palette_of

_FRAME_SECONDS = 1 / 15
_LOOK_SECONDS = 0.25  # between two looks at a run that is being written
_REST = 4.0  # times as long as a look took
_STATUS_SECONDS = 1.0
_GONE = "the run folder was taken away"


class Player:
    def __init__(self, camera: Camera, ability: Ability, palette: ColorScheme = ColorScheme.DEFAULT) -> None:
        self.run: Run = camera.run
        self.camera = camera
        self.status = self.run.status
        live = self.status == "running"
        self.playback = Playback(camera, following=live, playing=not live, palette=palette)
        self.ability = ability
        self.picture = Picture(camera, ability)
        self._drawn: list[str] = []
        self._looked = self._asked = self._effort = 0.0

    def play(self, screen: Screen) -> None:
        """Until `q` is pressed; without a keyboard, until there is no more to see."""
        before = time.monotonic()
        with screen:
            while not self.playback.over:
                now = time.monotonic()
                self._look(now)
                self.playback.advance(now - before)
                before = now
                screen.draw(self._lines_or_before(*screen.size))
                if not screen.has_keys and not self._moves():
                    return
                for key in screen.wait(self._patience()):
                    if key == "redraw":
                        screen.forget()
                    self.playback.press(key)

    def _lines_or_before(self, columns: int, rows: int) -> list[str]:
        """A file that is replaced, or taken away, under our eyes: the picture before this one is still true."""
        if self.status == _GONE:
            message = str(Writing(columns, self.ability).add(f"{_GONE}  q quit", BOLD))
            return [*self._drawn[: rows - 1], message]
        try:
            self._drawn = self.lines(columns, rows)
        except (UndertowError, OSError):
            if not self._drawn:
                raise
        return self._drawn

    def lines(self, columns: int, rows: int) -> list[str]:
        if columns < LEAST_COLUMNS or rows < LEAST_ROWS:
            return [str(Writing(columns, self.ability).add("too small"))]
        if self.playback.helping:
            return self._help(columns)
        self.picture.palette = palette_of(self.playback.palette)
        return self.picture.lines(self.playback.moment(self.status), columns, rows)

    def _help(self, columns: int) -> list[str]:
        lines = [str(Writing(columns, self.ability).add("Keys", BOLD)), ""]
        for keys, meaning in HELP:
            lines.append(str(Writing(columns, self.ability).add(f"  {keys}", BOLD).to(22).add(meaning)))
        letters = LETTERS if self.ability.unicode else PLAIN_LETTERS
        marks = "   ".join(f"{letter} {self.picture.palette.marks[cell].name}" for cell, letter in letters.items())
        return [*lines, "", str(Writing(columns, self.ability).add("Cells", BOLD)), "", f"  {marks}"[:columns]]

    def _look(self, now: float) -> None:
        if self.status != "running" or now - self._looked < max(_LOOK_SECONDS, _REST * self._effort):
            return
        self._looked = now
        began = time.process_time()
        try:
            known = len(self.camera.steps)
            self.camera.refresh()
            if known and not len(self.camera.steps):
                self.status = _GONE
            elif now - self._asked > _STATUS_SECONDS:
                self._asked = now
                self.status = self.run.status
        except (UndertowError, OSError):
            pass  # caught in the middle of a write: the picture before this one is still true
        self._effort = time.process_time() - began

    def _moves(self) -> bool:
        """Will the picture change by itself?"""
        return self.playback.playing or (self.playback.following and self.status == "running")

    def _patience(self) -> float | None:
        if self.playback.playing:
            return _FRAME_SECONDS
        return _LOOK_SECONDS if self.status == "running" else None
