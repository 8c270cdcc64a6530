"""Text that is safe to write to a terminal, and lines that are never wider than it."""

from __future__ import annotations

import os
import select

from rich.cells import cell_len, set_cell_size

from undertow.show.terminal.ability import Ability, Depth

BOLD, DIM = "1", "2"
RESET = "\x1b[0m"
_SELECTORS = "\ufe0e\ufe0f"  # they ask for another width of the character before them, and terminals disagree
# For terminals without these signs.
_PLAIN = str.maketrans("…·–×▲■✖○▶●✔←→↑↓’", "~--x!#Xo>*+<>^v'")


def clean(text: str, unicode: bool = True) -> str:
    """Names come from anywhere: no control character, no mark of direction, no surrogate gets to the terminal."""
    letters = [letter if letter.isprintable() else "\ufffd" for letter in text if letter not in _SELECTORS]
    if unicode:
        return "".join(letters)
    return "".join(letters).translate(_PLAIN).encode("ascii", "replace").decode("ascii")


def shorten(text: str, width: int, ellipsis: str = "…") -> str:
    """At most `width` cells: both ends of a long path say more than its beginning."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return ellipsis[:width]
    tail = (width - 1) * 2 // 3
    start, end = _head(text, width - 1 - tail), _head(text[::-1], tail)[::-1]
    return f"{start}{ellipsis}{end}"


def abbreviate(path: str, width: int, ellipsis: str = "…") -> str:
    """Modules by their first letters, from the outermost on, as far as it takes: `blo.0.attention.weight`."""
    parts = path.split(".")
    for letters in (3, 1):
        for place, part in enumerate(parts[:-1]):
            if cell_len(".".join(parts)) <= width:
                break
            if not part.isdigit():
                parts[place] = part[:letters]
    return shorten(".".join(parts), width, ellipsis)


def crop(text: str, width: int, ellipsis: str = "…") -> str:
    if cell_len(text) <= width:
        return text
    return _head(text, width - 1) + ellipsis if width > 0 else ""


def _head(text: str, width: int) -> str:
    """As many whole characters as fit: half of a wide one is left out."""
    found = set_cell_size(text, max(0, width))
    return found if text.startswith(found) else found[:-1]


def write(output: int, text: str) -> None:
    """All of it, also to a terminal that takes no more for a while."""
    data = text.encode("utf-8", "replace")
    while data:
        try:
            data = data[os.write(output, data) :]
        except BlockingIOError:
            select.select([], [output], [], 1.0)


def write_at_once(output: int, text: str) -> None:
    """Terminals that know how show all of it in one go."""
    write(output, f"\x1b[?2026h{text}\x1b[?2026l")


class Writing:
    """One line of at most `width` cells."""

    def __init__(self, width: int, ability: Ability) -> None:
        self.room = width
        self._width = width
        self._ability = ability
        self._parts: list[str] = []

    def add(self, text: str, style: str = "") -> Writing:
        """What does not fit is cut off, visibly."""
        text = clean(text, self._ability.unicode)
        text = crop(text, self.room, "…" if self._ability.unicode else "~")
        if text:
            self.room -= cell_len(text)
            styled = bool(style) and self._ability.depth is not Depth.NONE
            self._parts.append(f"\x1b[{style}m{text}{RESET}" if styled else text)
        return self

    def painted(self, text: str, width: int) -> Writing:
        """Text with colours of its own, `width` cells wide."""
        self._parts.append(text)
        self.room -= width
        return self

    def to(self, column: int, exactly: bool = False) -> Writing:
        """Blanks up to a column. `exactly` moves there as well, should the terminal think a character wider than us."""
        self._parts.append(" " * max(0, column - (self._width - self.room)))
        if exactly and self._ability.depth is not Depth.NONE:
            self._parts.append(f"\x1b[{column + 1}G")
        self.room = min(self.room, self._width - column)
        return self

    def __str__(self) -> str:
        return "".join(self._parts)
