"""All layers over all steps as one field of colours, with the loss below."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from undertow.run import Run
from undertow.show.pictures.canvas import Box, Canvas, Style, with_pattern
from undertow.show.pictures.choice import Choice, loss_line
from undertow.show.pictures.furniture import LEGEND_HEIGHT, Steps, legend, scalar_strip, step_axis, step_name, title
from undertow.views.grid import Grid, folded, grid_of
from undertow.views.group_labels import Label, labels_of

_TALLEST = 1000  # of the field, unless the user gives a height
_ROW = 22


class GrowingPicture:
    """A still; as an animation it grows with the steps."""

    style: Style
    grid: Grid
    steps: Steps
    canvas: Canvas
    reach: Box  # what an animation uncovers

    @property
    def frames(self) -> int:
        return self.grid.columns

    def still(self) -> Image.Image:
        return self.canvas.image

    def frame(self, column: int) -> Image.Image:
        """Up to that column, with everything after it still to come."""
        style, box, sheet = self.style, self.reach, self.canvas.copy()
        step_name(sheet, self.steps.name(column))
        edge = round(self.steps.across(box, self.steps.first + (column + 1) * self.steps.width))
        if edge < box.right:
            sheet.fill(Box(edge, box.top - 1, box.right - edge + 1, box.height + 2), style.inks.paper)
            sheet.rule((edge, box.top), (edge, box.bottom - 1), style.inks.text, style.pixels(1))
        return sheet.image


class HeatmapPicture(GrowingPicture):
    def __init__(self, run: Run, choice: Choice, style: Style) -> None:
        self.style = style
        span, quantity = choice.span_of(run), choice.quantity_of(run)
        layers = choice.layers_of(run, quantity)
        above, strip = style.margin + style.pixels(62), style.pixels(64) if "loss" in run.scalar_names else 0
        below = style.pixels(30) + (strip + style.pixels(14) if strip else 0) + style.pixels(LEGEND_HEIGHT)
        if style.height is None:
            tall = min(style.pixels(_TALLEST), max(style.pixels(_ROW) * len(layers), style.pixels(60)))
        else:
            tall = max(style.pixels(40), style.height - above - below - style.margin)
        names = labels_of([layer.path for layer in layers], max(1, tall // style.pixels(16)))
        left = style.margin + name_room(style, [label.text for label in names])
        self.field = Box(left, above, style.width - style.margin - left, tall)
        whole = grid_of(run.reader, quantity, layers, span, self.field.width)
        self.grid = folded(whole, tall)
        self.steps = Steps(whole.first, whole.width, whole.columns)
        self.canvas = style.canvas(style.height or above + tall + below + style.margin)
        title(self.canvas, quantity.replace("_", " "), self._details(run.name, span, len(layers)))
        self.canvas.paste((left, above), field_of(self.grid, style, self.field.width, tall))
        self.canvas.outline(self.field, style.inks.rule)
        row_names(self.canvas, self.field, names, len(layers))
        under, loss = self.field, loss_line(run, span, self.field.width)
        if loss is not None:
            under = Box(under.left, under.bottom + style.pixels(14), under.width, strip)
            scalar_strip(self.canvas, under, self.steps, loss, "loss")
        self.reach = Box(self.field.left, self.field.top, self.field.width, under.bottom - self.field.top)
        step_axis(self.canvas, under, self.steps)
        legend(self.canvas, under.bottom + style.pixels(38), style.margin, self.grid.scale, self.grid.kinds)

    def _details(self, name: str, span: tuple[int, int], layers: int) -> str:
        parts = [name, f"steps {span[0]:,} to {span[1]:,}", f"{layers:,} {'layer' if layers == 1 else 'layers'}"]
        if self.grid.width > 1:
            parts.append(f"largest of {self.grid.width:,} steps per column")
        if len(self.grid.rows) < layers:
            parts.append(f"up to {-(-layers // len(self.grid.rows))} layers per line")
        return " · ".join(parts)


def name_room(style: Style, names: list[str]) -> int:
    """What the names need, but never more than a third of the width."""
    longest = sorted(names, key=len)[-20:]
    widest = max(style.typeface.width(style.typeface.legible(name), style.small) for name in longest)
    return round(min(style.width * 0.32, max(widest, style.pixels(60)))) + style.pixels(14)


def row_names(canvas: Canvas, box: Box, names: list[Label], rows: int) -> None:
    """To the left of the box; where rows are thin, a bracket around those that share a name."""
    style = canvas.style
    room = box.left - style.margin - style.pixels(14)
    each = box.height / rows
    ended = 0.0
    for label in names:
        top, bottom = box.top + each * label.start, box.top + each * label.end
        if label.end - label.start > 1 and bottom - top > 3:
            x = box.left - style.pixels(5)
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
