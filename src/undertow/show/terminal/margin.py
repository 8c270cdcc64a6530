"""The lowest rows of a terminal, kept for a picture while another program writes above them.

The terminal scrolls only the rows above the margin, so what the other program prints stays whole and goes into the
terminal's history as always. Every change is one write: the system keeps writes of several programs apart.
"""

import os
from collections.abc import Sequence

from undertow.show.terminal.writing import write_at_once

_SAVE, _RESTORE = "\x1b7", "\x1b8"  # the cursor, its colours and its place in the line
_WHOLE = "\x1b[r"
_INDEX = "\x1bD"  # a line down in the same column; the lowest one scrolls
# When their size changes, terminals move rows about in ways of their own; but what we drew stays below the cursor.
_BELOW = "\x1b[J"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"


class Margin:
    def __init__(self, output: int, height: int) -> None:
        self._output = output
        self.height = height
        self._rows = 0  # of the terminal; 0: the margin is not there
        self._columns = 0
        self._drawn: list[str] = []

    @property
    def is_open(self) -> bool:
        return self._rows > 0

    def draw(self, lines: Sequence[str], columns: int, rows: int) -> None:
        """Open the margin where the terminal is new or has another size; write what has changed."""
        out = ""
        if (columns, rows) != (self._columns, self._rows):
            out = (_BELOW if self.is_open else "") + self._reserve(rows)
            self._columns, self._rows, self._drawn = columns, rows, []
        top = rows - self.height
        wanted = [*lines[: self.height], *[""] * (self.height - len(lines))]
        changed = [
            f"\x1b[{top + place + 1};1H\x1b[0m\x1b[K{line}"
            for place, line in enumerate(wanted)
            if place >= len(self._drawn) or self._drawn[place] != line
        ]
        self._drawn = wanted
        if out or changed:
            write_at_once(self._output, f"{out}{_SAVE}{_NO_WRAP}{''.join(changed)}{_WRAP}{_RESTORE}")

    def mend(self) -> None:
        """Make it right again should the other program have reset the terminal; if it has not, nothing is seen."""
        if self.is_open:
            write_at_once(self._output, self._reserve(self._rows))
            self._drawn = []

    def close(self) -> None:
        """The whole terminal scrolls again, and the margin is empty."""
        if self.is_open:
            columns, rows = os.get_terminal_size(self._output)
            if (columns, rows) == (self._columns, self._rows):
                clear = f"{_SAVE}{_WHOLE}\x1b[{rows - self.height + 1};1H\x1b[0m\x1b[J{_RESTORE}"
            else:
                clear = f"{_SAVE}{_WHOLE}{_RESTORE}{_BELOW}"
            write_at_once(self._output, f"{clear}{_WRAP}")
            self._rows = self._columns = 0
            self._drawn = []

    def _reserve(self, rows: int) -> str:
        """Scroll until the cursor stands above the margin, wherever it was, and keep scrolling to the rows above."""
        down, up = _INDEX * self.height, f"\x1b[{self.height}A"
        return f"{_SAVE}{_WHOLE}{_RESTORE}{down}{up}{_SAVE}\x1b[1;{rows - self.height}r{_RESTORE}"
