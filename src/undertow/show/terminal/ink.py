"""Cells in characters: two colours in each where the terminal can show them, shades or letters where it cannot."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from undertow.schema.seeds.flow_records import ColorScheme
from undertow.show.terminal.ability import Ability, Depth
from undertow.show.terminal.writing import RESET
from undertow.views.grid import Grid
from undertow.views.palette import Cell, Colour, Palette, luminance
from undertow.views.scale import levels_of

Indices = NDArray[np.uint8]

SHADES = 48  # an eye tells no more apart in cells of this size, and equal neighbours are written once
_MARKS = {cell: SHADES + place for place, cell in enumerate(cell for cell in Cell if cell is not Cell.VALUE)}
_CELLS = {place: cell for cell, place in _MARKS.items()}
_UNSAMPLED = _MARKS[Cell.NOT_SAMPLED]
PAPER = SHADES + len(_MARKS)  # nothing has happened here yet
# Shape differs wherever meaning does: colour alone must not tell it.
LETTERS = {Cell.NOT_SAMPLED: "·", Cell.FROZEN: "f", Cell.NO_GRADIENT: "–", Cell.ZERO: "0", Cell.NONFINITE: "╳"}
PLAIN_LETTERS = LETTERS | {Cell.NOT_SAMPLED: "_", Cell.NO_GRADIENT: "-", Cell.NONFINITE: "X"}
_RAMP, _PLAIN_RAMP = "░▒▓█", ".:=+*#%@"
# Of the sixteen colours those that grow in lightness and are neither grey nor magenta, which are taken by marks.
_SIXTEEN = {False: (4, 12, 6, 10, 11), True: (4, 12, 15, 11, 3)}
_SIXTEEN_GREYS = (8, 7, 15)
_SIXTEEN_MARKS = {Cell.NOT_SAMPLED: 8, Cell.FROZEN: 7, Cell.NO_GRADIENT: 1, Cell.ZERO: 0, Cell.NONFINITE: 13}
_CUBE = (0, 95, 135, 175, 215, 255)
_SIDE_BY_SIDE, _ONE_ABOVE = ("▌", "▐"), ("▀", "▄")


class Ink:
    """How the cells of one scale look in one terminal."""

    def __init__(self, ability: Ability, palette: Palette, diverging: bool = False) -> None:
        self.ability = ability
        self.palette = palette
        self.letters = LETTERS if ability.unicode else PLAIN_LETTERS
        self._ramp = _RAMP if ability.unicode else _PLAIN_RAMP
        levels = np.linspace(0, 1, SHADES, dtype=np.float32)
        shades = (palette.diverging if diverging else palette.sequential)(levels)
        self._colours: list[Colour] = [(red, green, blue) for red, green, blue in shades.tolist()]
        self._colours += [palette.marks[cell].colour for cell in _MARKS]
        codes = [self._codes(place, diverging) for place in range(PAPER)]
        self._front, self._back = ([code[side] for code in codes] for side in (0, 1))
        # Marks keep their letter; shades that look the same become one, so that they are written once.
        first: dict[str, int] = {}
        alike = [first.setdefault(ink, place) for place, ink in enumerate(self._front[:SHADES])]
        if ability.depth is Depth.NONE:
            alike = list(range(SHADES))
        self._alike = np.array([*alike, *range(SHADES, PAPER + 1)], np.uint8)
        self.character = lru_cache(maxsize=20_000)(self._character)

    def indices(self, grid: Grid) -> Indices:
        """What each cell looks like, as a number."""
        levels = np.nan_to_num(levels_of(grid.scale, grid.values))
        found = np.minimum(levels * SHADES, SHADES - 1).astype(np.uint8)
        for cell, place in _MARKS.items():
            found[grid.cells == cell] = place
        return self._alike[found]

    def rows(self, cells: Indices, beside: bool) -> list[str]:
        """Lines of characters; with halves, two neighbours `beside` or above each other share one."""
        if not self.ability.halves:
            first = second = cells
        else:  # one more row or column of paper, if there is one too many
            rows, columns = (0, cells.shape[1] % 2) if beside else (cells.shape[0] % 2, 0)
            cells = np.pad(cells, ((0, rows), (0, columns)), constant_values=PAPER)
            first, second = (cells[:, ::2], cells[:, 1::2]) if beside else (cells[::2], cells[1::2])
        keys = first.astype(np.int32) * 256 + second
        return [self._row(row, beside) for row in keys]

    def scale(self, width: int) -> str:
        """The whole scale in that many characters."""
        halves = 2 if self.ability.halves else 1
        places = np.linspace(0, SHADES - 1, width * halves).round().astype(np.uint8)[None]
        return self.rows(self._alike[places], beside=True)[0]

    def mark(self, cell: Cell) -> str:
        return self.rows(np.full((1, 2 if self.ability.halves else 1), _MARKS[cell], np.uint8), beside=True)[0]

    def _row(self, keys: NDArray[np.int32], beside: bool) -> str:
        ends = np.flatnonzero(np.diff(keys, append=-1)) + 1
        parts: list[str] = []
        current, start = "", 0
        for end in ends.tolist():
            style, character = self.character(int(keys[start]), beside)
            if style != current:
                parts.append(style or RESET)
                current = style
            parts.append(character * (end - start))
            start = end
        return "".join(parts) + (RESET if current else "")

    def _character(self, key: int, beside: bool) -> tuple[str, str]:
        one, other = divmod(key, 256)
        if self.ability.depth is Depth.NONE:
            return "", self._letter(one)
        if one == other:
            if one == PAPER:
                return "", " "
            if one == _UNSAMPLED:  # quiet: there is nothing to see
                return "\x1b[0;90m", self._letter(one)
            letter = self._letter(one) if one >= SHADES else " "
            front = f"{self._on(one)};" if letter != " " else ""
            return f"\x1b[0;{front}{self._back[one]}m", letter
        one, other = (PAPER if place == _UNSAMPLED else place for place in (one, other))
        bad = _MARKS[Cell.NONFINITE]
        if bad in (one, other):  # never a half of a character: that one is to be seen
            rest = other if one == bad else one
            back = "" if rest == PAPER else f";{self._back[rest]}"
            return f"\x1b[0;1;{self._front[bad]}{back}m", self.letters[Cell.NONFINITE]
        if one == other:
            return "", " "
        left, right = _SIDE_BY_SIDE if beside else _ONE_ABOVE
        if one == PAPER:
            return f"\x1b[0;{self._front[other]}m", right
        back = "" if other == PAPER else f";{self._back[other]}"
        return f"\x1b[0;{self._front[one]}{back}m", left

    def _letter(self, place: int) -> str:
        if place == PAPER:
            return " "
        if place >= SHADES:
            return self.letters[_CELLS[place]]
        return self._ramp[place * len(self._ramp) // SHADES]

    def _on(self, place: int) -> str:
        """Letters that can be read on a colour."""
        if self.ability.depth is Depth.SIXTEEN:
            return "97" if self._back[place] in ("40", "41", "100") else "30"
        return "30" if luminance(self._colours[place]) > 0.18 else "97"

    def _codes(self, place: int, diverging: bool) -> tuple[str, str]:
        """What makes text of this colour, and what makes it a background."""
        colour = self._colours[place]
        match self.ability.depth:
            case Depth.TRUE:
                end = "8;2;{};{};{}".format(*colour)
            case Depth.PALETTE:
                end = f"8;5;{_nearest_of_256(colour)}"
            case Depth.SIXTEEN:
                number = self._of_sixteen(place, diverging)
                return (f"3{number}", f"4{number}") if number < 8 else (f"9{number - 8}", f"10{number - 8}")
            case Depth.NONE:
                return "", ""
        return f"3{end}", f"4{end}"

    def _of_sixteen(self, place: int, diverging: bool) -> int:
        if place >= SHADES:
            return _SIXTEEN_MARKS[_CELLS[place]]
        ramp = _SIXTEEN_GREYS if self.palette.scheme is ColorScheme.MONOCHROME else _SIXTEEN[diverging]
        return ramp[place * len(ramp) // SHADES]


def _nearest_of_256(colour: Colour) -> int:
    red, green, blue = (min(range(6), key=lambda step, part=part: abs(_CUBE[step] - part)) for part in colour)
    cube = (_CUBE[red], _CUBE[green], _CUBE[blue])
    grey = min(range(24), key=lambda step: abs(8 + 10 * step - sum(colour) / 3))
    shade = 8 + 10 * grey

    def apart(other: tuple[int, int, int]) -> int:
        return sum((one - two) ** 2 for one, two in zip(colour, other))

    if apart((shade, shade, shade)) < apart(cube):
        return 232 + grey
    return 16 + 36 * red + 6 * green + blue
