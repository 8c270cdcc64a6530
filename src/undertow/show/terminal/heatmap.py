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


def paint(heatmap: Heatmap, label_width: int, colour: bool, width: int | None = None) -> list[Text]:
    """One line per layer, then the scale with the letters that occur, in as many lines as `width` asks for."""
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
    return [*lines, *_legend(heatmap, label_width, colour, width)]


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


def _legend(heatmap: Heatmap, label_width: int, colour: bool, width: int | None) -> list[Text]:
    scale = Text(f"{heatmap.low:.0e} ")
    if colour:
        for red, green, blue in palette.sequential(np.linspace(0, 1, 12, dtype=np.float32)).tolist():
            scale.append("█", f"rgb({red},{green},{blue})")
    else:
        scale.append(_SHADES)
    scale.append(f" {heatmap.high:.0e}")
    entries = [scale]
    for cell in sorted(heatmap.kinds - {Cell.VALUE, Cell.NOT_SAMPLED}):
        glyph, style = _GLYPHS[cell]
        entries.append(Text.assemble((glyph, style if colour else ""), f" {_MEANINGS[cell]}"))
    return side_by_side(entries, "   ", label_width + 1, width)


def side_by_side(entries: list[Text], gap: str, indent: int, width: int | None) -> list[Text]:
    """Below the cells if it fits there, else from the left edge, and in several lines if it must be."""
    length = sum(entry.cell_len for entry in entries) + len(gap) * (len(entries) - 1)
    if width is not None and indent + length > width:
        indent = 0
    lines: list[Text] = []
    for entry in entries:
        if lines and (width is None or lines[-1].cell_len + len(gap) + entry.cell_len <= width):
            lines[-1].append(gap).append_text(entry)
        else:
            lines.append(Text(" " * indent, no_wrap=True, overflow="ellipsis").append_text(entry))
    return lines
