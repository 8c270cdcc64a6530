"""How gradient travels from the loss back to the inputs: modules as executed, who feeds whom, how much arrives."""

import math

import numpy as np
from PIL import Image

from undertow.errors import SettingError, UnknownNameError
from undertow.run import Run
from undertow.schema.seeds.flow_records import GradientFlowVisualization
from undertow.show.pictures.canvas import Box, Canvas, Stroke, Style
from undertow.show.pictures.choice import Choice, loss_line
from undertow.show.pictures.furniture import LEGEND_HEIGHT, Steps, legend, scalar_strip, step_axis, step_name, title
from undertow.show.pictures.heatmap import name_room
from undertow.views.flow_rows import QUANTITY, FlowLink, flow_rows
from undertow.views.palette import Cell
from undertow.views.scale import levels_of, number

_ROW = 24
_TALLEST_ROW = 40
_LOWEST_ROW = 17  # below it names touch each other
_MOST_ROWS = 40  # unless the user gives a height
_ARCS = 120
_LOOK = 4096  # rows


class FlowPicture:
    """One column of steps per frame; the still is the newest one. The scale is that of the whole run throughout."""

    def __init__(
        self, run: Run, choice: Choice, style: Style, frames: int, flow: GradientFlowVisualization | None = None
    ) -> None:
        if choice.quantity not in (None, QUANTITY):
            raise SettingError(
                f"the flow is drawn of {QUANTITY}, not of {choice.quantity}",
                way_out="--what heatmap and --what timelines take any quantity",
            )
        self.style = style
        first, last = choice.span_of(run)
        choice.quantity_of(run)
        newest = _newest(run, first, last)
        span = (first, last) if frames > 1 else (newest, newest)
        self.above = style.margin + style.pixels(86)
        strip = style.pixels(64) if "loss" in run.scalar_names else 0
        below = style.pixels(30) + (strip + style.pixels(14) if strip else 0) + style.pixels(LEGEND_HEIGHT)
        most = _MOST_ROWS
        if style.height is not None:
            most = max(2, (style.height - self.above - below - style.margin) // style.pixels(_LOWEST_ROW))
        self.flow = flow_rows(run, span, frames, most, choice.globs, flow)
        if not self.flow.rows:
            raise UnknownNameError("no module fits --layers", way_out="Without it all are drawn")
        rows = len(self.flow.rows)
        self.row = style.pixels(_ROW)
        if style.height is not None:
            self.row = min(style.pixels(_TALLEST_ROW), (style.height - self.above - below - style.margin) // rows)
        grid = self.flow.grid
        self.steps = Steps(grid.first, grid.width, grid.columns)
        self.levels = levels_of(grid.scale, grid.values)
        self.colours = grid.colours(style.palette)
        self._seen = np.maximum(grid.seen.max(axis=0), 0)  # a column in which nothing was sampled shows the one before
        height = style.height or self.above + rows * self.row + below + style.margin
        self._canvas = style.canvas(height)
        gains = " · gains over the newest recorded steps" if any(row.gain is not None for row in self.flow.rows) else ""
        title(self._canvas, "gradient flow", f"{run.name} · {len(run.layers.parameters):,} layers{gains}")
        self._columns()
        self._arcs()
        self._names()
        left = style.margin + name_room(style, ["0.000"])
        under = Box(left, self.above + rows * self.row + style.pixels(14), style.width - style.margin - left, strip)
        self._over = Steps(first, 1, last - first + 1)
        loss = loss_line(run, (first, last), under.width)
        if loss is not None:
            scalar_strip(self._canvas, under, self._over, loss, "loss")
            step_axis(self._canvas, under, self._over)
        self._strip = under
        top = under.bottom + style.pixels(38)
        shown = any(link.share is not None for link in self.flow.links)
        words = ["thick lines: much of the gradient takes this way"] if shown else []
        legend(self._canvas, top, style.margin, grid.scale, grid.kinds, words)

    @property
    def frames(self) -> int:
        return self.flow.grid.columns

    def still(self) -> Image.Image:
        return self.frame(self.frames - 1)

    def frame(self, column: int) -> Image.Image:
        canvas, style = self._canvas.copy(), self.style
        step_name(canvas, self.steps.name(column))
        for place in range(len(self.flow.rows)):
            self._bar(canvas, place, int(self._seen[column]))
        if self._strip.height:
            start = self.steps.first + column * self.steps.width
            x = round(self._over.across(self._strip, start + self.steps.width / 2))
            x = min(x, self._strip.right - 1)
            canvas.rule((x, self._strip.top), (x, self._strip.bottom - 1), style.inks.text, style.pixels(2))
        return canvas.image

    def _columns(self) -> None:
        """Where everything stands across the sheet."""
        style = self.style
        names = [row.name for row in self.flow.rows]
        notes = [", ".join(row.notes) for row in self.flow.rows]
        arcs = any(link.end - link.start != 1 for link in self.flow.links)
        self.dots = style.margin + style.pixels(_ARCS if arcs else 44 if self.flow.links else 6)
        self.name_left = self.dots + style.pixels(14)
        heading = "module, from input to loss"
        self.name_room = max(name_room(style, names), round(style.typeface.width(heading, style.small)))
        self.note_left = self.name_left + self.name_room + style.pixels(6)
        widest = max(style.typeface.width(note, style.small) for note in notes)
        self.note_room = round(min(style.pixels(220), widest))
        left = self.note_left + self.note_room + style.pixels(14)
        self.gain_right = style.width - style.margin
        self.value_right = self.gain_right - style.pixels(70)
        self.track = (left, self.value_right - style.pixels(96) - left)
        head = self.above - style.pixels(20)
        quiet = style.inks.quiet
        if self.flow.links:
            self._canvas.text((self.dots, head), "feeds", colour=quiet, anchor="ra")
        self._canvas.text((self.name_left, head), heading, colour=quiet)
        self._canvas.text((left, head), "gradient norm", colour=quiet)
        if any(row.gain is not None for row in self.flow.rows):
            self._canvas.text((self.gain_right, head), "gain", colour=quiet, anchor="ra")

    def _middle(self, place: int) -> float:
        return self.above + self.row * (place + 0.5)

    def _arcs(self) -> None:
        """A straight line to the next row, an arc over those that are skipped."""
        style, rows = self.style, len(self.flow.rows)
        box = Box(style.margin, self.above, self.dots + style.pixels(8) - style.margin, rows * self.row)
        farthest = max([2, *(abs(link.end - link.start) for link in self.flow.links)])
        main = {place for place, row in enumerate(self.flow.rows) if row.on_main_path}
        strokes: list[Stroke] = []
        for link in sorted(self.flow.links, key=lambda link: {link.start, link.end} <= main):
            far = abs(link.end - link.start)
            bend = 0.0 if far < 2 else style.pixels(12) + style.pixels(_ARCS - 24) * math.log(far) / math.log(farthest)
            strong = {link.start, link.end} <= main
            ink = style.inks.text if strong else style.inks.quiet
            strokes.append(Stroke(self._curve(link, bend), ink, style.pixels(1) * _thickness(link.share)))
        self._canvas.strokes(box, strokes)

    def _curve(self, link: FlowLink, bend: float) -> list[tuple[float, float]]:
        top, bottom = self._middle(link.start), self._middle(link.end)
        places = np.linspace(0, 1, 2 if bend == 0 else 33)
        across = self.dots - 3 * places * (1 - places) * bend * 4 / 3
        down = top + (bottom - top) * (3 * places**2 - 2 * places**3)
        return list(zip(across.tolist(), down.tolist()))

    def _names(self) -> None:
        quiet = self.style.inks.quiet
        for place, row in enumerate(self.flow.rows):
            middle = self._middle(place)
            self._canvas.text((self.name_left, middle), row.name, anchor="lm", room=self.name_room)
            notes, gain = ", ".join(row.notes), "" if row.gain is None else number(row.gain)
            self._canvas.text((self.note_left, middle), notes, colour=quiet, anchor="lm", room=self.note_room)
            self._canvas.text((self.gain_right, middle), gain, colour=quiet, anchor="rm")

    def _bar(self, canvas: Canvas, place: int, column: int) -> None:
        style, grid = self.style, self.flow.grid
        cell, middle = Cell(int(grid.cells[place, column])), self._middle(place)
        left, wide = self.track
        high = max(4, self.row - style.pixels(8))
        bar = Box(left, round(middle - high / 2), wide, high)
        red, green, blue = self.colours[place, column].tolist()
        colour = (red, green, blue)
        canvas.fill(bar, style.inks.rule)
        if cell is Cell.VALUE:
            text = number(float(grid.values[place, column]))
            long = max(2, round(wide * float(self.levels[place, column])))
            canvas.fill(Box(bar.left, bar.top, long, high), colour)
        else:
            mark = style.palette.marks[cell]
            text = mark.name
            long = wide if cell is Cell.NONFINITE else style.pixels(16)
            canvas.fill_with(Box(bar.left, bar.top, long, high), mark)
        size = min(self.row - 2, style.pixels(10))
        dot = Box(round(self.dots - size / 2), round(middle - size / 2), size, size)
        canvas.outline(dot, style.inks.text)
        canvas.fill(dot, colour)
        ink = style.inks.text if cell in (Cell.VALUE, Cell.NONFINITE) else style.inks.quiet
        canvas.text((self.value_right, middle), text, anchor="rm", colour=ink)


def _newest(run: Run, first: int, last: int) -> int:
    """The last step at which gradients were measured."""
    window = run.reader.window(QUANTITY, first, last, _LOOK, [run.layers.parameters[0].id])
    return int(window.last_steps[-1]) if len(window.steps) else last


def _thickness(share: float | None) -> float:
    """Four pixels where all gradient comes back; what is not known, or next to nothing, has a thin line."""
    return 0.8 if share is None else max(0.8, min(5.0, 4 * abs(share)))
