"""All layers over all steps as one field of colours, with the loss below."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from undertow.run import Run
from undertow.show.pictures.canvas import Box, Canvas, Style, with_pattern
from undertow.show.pictures.choice import Choice, loss_line
from undertow.show.pictures.furniture import LEGEND_HEIGHT, Steps, legend, scalar_strip, step_axis, step_name, title
from undertow.views.grid import Grid, folded, grid_of
from undertow.views.labels import labels_of

_TALLEST = 1000  # of the field, unless the user gives a height
_ROW = 22


class HeatmapPicture:
    """A still; as an animation it grows with the steps."""

    def __init__(self, run: Run, choice: Choice, style: Style) -> None:
        self.style = style
        quantity, span = choice.quantity_of(run), choice.span_of(run)
        layers = choice.layers_of(run, quantity)
        names = [layer.path for layer in layers]
        left = style.margin + name_room(style, names)
        wide = style.width - style.margin - left
        grid = grid_of(run.reader, quantity, layers, span, wide)
        self.loss = loss_line(run, span, wide)
        self.grid, self.together = grid, 1
        self.steps = Steps(grid.first, grid.width, grid.columns)
        extent = f"steps {span[0]:,} to {span[1]:,}"
        each = "" if grid.width == 1 else f" · largest of {grid.width:,} steps per column"
        self.words = quantity.replace("_", " "), f"{run.name} · {extent} · {len(layers):,} layers{each}"
        self._draw(left, wide)

    def _draw(self, left: int, wide: int) -> None:
        style, grid = self.style, self.grid
        strip = style.pixels(64) if self.loss is not None else 0
        above = style.margin + style.pixels(62)
        below = style.pixels(30) + (strip + style.pixels(14) if strip else 0) + style.pixels(LEGEND_HEIGHT)
        rows = len(grid.rows)
        if style.height is None:
            tall = min(style.pixels(_TALLEST), max(style.pixels(_ROW) * rows, style.pixels(60)))
        else:
            tall = max(style.pixels(40), style.height - above - below - style.margin)
        self.grid = grid = folded(grid, tall)
        self.field = Box(left, above, wide, tall)
        note = "" if len(grid.rows) == rows else f" · up to {-(-rows // len(grid.rows))} layers per line"
        self.canvas = Canvas(style, style.height or above + tall + below + style.margin)
        title(self.canvas, self.words[0], self.words[1] + note)
        self.canvas.paste((left, above), field_of(grid, style, wide, tall))
        self.canvas.outline(self.field, style.inks.rule)
        row_names(self.canvas, self.field, grid.rows)
        self.reach = self.field
        under = self.field
        if self.loss is not None:
            under = Box(left, self.field.bottom + style.pixels(14), wide, strip)
            scalar_strip(self.canvas, under, self.steps, self.loss, "loss")
            self.reach = Box(left, above, wide, under.bottom - above)
        step_axis(self.canvas, under, self.steps)
        top = under.bottom + style.pixels(38)
        legend(self.canvas, top, style.margin, grid.scale, grid.kinds)

    @property
    def frames(self) -> int:
        return self.grid.columns

    def still(self) -> Image.Image:
        return self.canvas.image

    def frame(self, column: int) -> Image.Image:
        """Up to that column."""
        return revealed(self.canvas, self.reach, self.steps, column)


def revealed(canvas: Canvas, box: Box, steps: Steps, column: int) -> Image.Image:
    """The same picture with everything after a column still to come."""
    style = canvas.style
    sheet = canvas.copy()
    step_name(sheet, steps.name(column))
    edge = round(steps.across(box, steps.first + (column + 1) * steps.width))
    if edge < box.right:
        sheet.fill(Box(edge, box.top - 1, box.right - edge + 1, box.height + 2), style.inks.paper)
        sheet.rule((edge, box.top), (edge, box.bottom - 1), style.inks.text, style.pixels(1))
    return sheet.image


def name_room(style: Style, names: list[str]) -> int:
    """What the names need, but never more than a third of the width."""
    longest = sorted(names, key=len)[-20:]
    widest = max(style.typeface.width(style.typeface.legible(name), style.small) for name in longest)
    return round(min(style.width * 0.32, max(widest, style.pixels(60)))) + style.pixels(14)


def row_names(canvas: Canvas, box: Box, rows: tuple[str, ...]) -> None:
    """To the left of the box; where rows are thin, a bracket around those that share a name."""
    style = canvas.style
    room = box.left - style.margin - style.pixels(14)
    each = box.height / len(rows)
    ended = 0.0
    for label in labels_of(rows, max(1, box.height // style.pixels(16))):
        top, bottom = box.top + each * label.start, box.top + each * label.end
        x = box.left - style.pixels(5)
        if label.end - label.start > 1:
            canvas.rule((x, top + 1), (x, bottom - 2), style.inks.quiet)
        middle = (top + bottom) / 2
        if middle - style.pixels(8) >= ended:  # a group too thin for its name goes without
            canvas.text((box.left - style.pixels(11), middle), label.text, anchor="rm", room=room)
            ended = middle + style.pixels(7)


def field_of(grid: Grid, style: Style, width: int, height: int) -> NDArray[np.uint8]:
    """The cells in pixels; a fine gap between rows that are tall enough."""
    rows, columns = grid.cells.shape
    down = np.arange(height) * rows // height
    across = np.arange(width) * columns // width
    pixels = grid.colours(style.palette)[down][:, across]
    cells = grid.cells[down][:, across]
    for cell, mark in style.palette.marks.items():
        pixels = with_pattern(pixels, cells == cell, mark, style.pixels(2))
    if height >= 9 * rows:
        pixels[1:][np.diff(down) > 0] = style.inks.paper
    return pixels
