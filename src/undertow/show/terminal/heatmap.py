"""The heatmap in characters: a block per cell, and a letter where there is no number."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from rich.text import Text

from undertow.views import palette
from undertow.views.heatmap import Cell, Heatmap

_MAGENTA = "rgb({},{},{})".format(*palette.NONFINITE)
# Letters say what colour alone must not: shape differs wherever meaning does.
_GLYPHS = {
    Cell.NOT_SAMPLED: ("·", "dim"),
    Cell.FROZEN: ("f", "dim cyan"),
    Cell.NO_GRADIENT: ("–", "bold bright_black"),
    Cell.ZERO: ("0", "bold white"),
    Cell.NONFINITE: ("╳", f"bold white on {_MAGENTA}"),
}
_MEANINGS = {
    Cell.NOT_SAMPLED: "not sampled",
    Cell.FROZEN: "frozen",
    Cell.NO_GRADIENT: "no gradient",
    Cell.ZERO: "exactly zero",
    Cell.NONFINITE: "NaN or infinite",
}
_SHADES = "░▒▓█"


def paint(heatmap: Heatmap, label_width: int, colour: bool) -> list[Text]:
    """One line per layer, then the scale with the letters that occur."""
    colours = palette.sequential(heatmap.levels)
    lines: list[Text] = []
    for row, label in enumerate(heatmap.labels):
        line = Text(f"{shorten(label, label_width):>{label_width}} ", style="default", no_wrap=True)
        painted = [
            _paint_cell(Cell(int(kind)), level, rgb, colour)
            for kind, level, rgb in zip(heatmap.cells[row], heatmap.levels[row].tolist(), colours[row].tolist())
        ]
        for (glyph, style), run in groupby(painted):
            line.append(glyph * len(list(run)), style)
        lines.append(line)
    lines.append(_legend(heatmap, label_width, colour))
    return lines


def _paint_cell(cell: Cell, level: float, rgb: list[int], colour: bool) -> tuple[str, str]:
    """The character of one cell and its style."""
    if cell is not Cell.VALUE:
        glyph, style = _GLYPHS[cell]
        return glyph, style if colour else ""
    if colour:
        return "█", "rgb({},{},{})".format(*rgb)
    return _SHADES[min(3, int(4 * level + 1e-4))], ""


def shorten(label: str, width: int) -> str:
    """Both ends of a long path say more than its beginning."""
    if len(label) <= width:
        return label
    tail = (width - 1) * 2 // 3
    return f"{label[: width - 1 - tail]}…{label[-tail:]}"


def _legend(heatmap: Heatmap, label_width: int, colour: bool) -> Text:
    line = Text(" " * (label_width + 1), no_wrap=True)
    line.append(f"{heatmap.low:.0e} ")
    if colour:
        for red, green, blue in palette.sequential(np.linspace(0, 1, 12, dtype=np.float32)).tolist():
            line.append("█", f"rgb({red},{green},{blue})")
    else:
        line.append(_SHADES)
    line.append(f" {heatmap.high:.0e}")
    for cell in sorted(heatmap.kinds - {Cell.VALUE, Cell.NOT_SAMPLED}):
        glyph, style = _GLYPHS[cell]
        line.append("   ")
        line.append(glyph, style if colour else "")
        line.append(f" {_MEANINGS[cell]}")
    return line
