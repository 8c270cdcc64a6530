"""A line per layer over the steps: coloured by execution order, named where there is room for names."""

import math
from dataclasses import replace

import numpy as np

from undertow.run import Run
from undertow.show.pictures.canvas import Box, Stroke, Style
from undertow.show.pictures.choice import Choice
from undertow.show.pictures.furniture import LEGEND_HEIGHT, Steps, step_axis, title
from undertow.show.pictures.heatmap import GrowingPicture, name_room
from undertow.views.grid import Grid, grid_of
from undertow.views.palette import Cell, line_colours
from undertow.views.scale import Scale, ScaleKind, levels_of, ticks_of

_HEIGHT = 560
_NAMED = 16  # lines with a name of their own; of more, those that end highest and lowest have one
_BAND = 26  # of what has no place on the scale


class TimelinesPicture(GrowingPicture):
    def __init__(self, run: Run, choice: Choice, style: Style) -> None:
        self.style = style
        span, quantity = choice.span_of(run), choice.quantity_of(run)
        layers = choice.layers_of(run, quantity)
        right = name_room(style, [layer.path for layer in layers]) + style.margin + style.pixels(16)
        left = style.margin + style.pixels(70)
        top = style.margin + style.pixels(62)
        grid = grid_of(run.reader, quantity, layers, span, style.width - left - right)
        self.grid = grid = replace(grid, scale=_scale_of(grid))
        below = style.pixels(44) + style.pixels(LEGEND_HEIGHT)
        height = style.height or style.pixels(_HEIGHT) + top + below
        self.canvas = style.canvas(height)
        each = "" if grid.width == 1 else f" · largest of {grid.width:,} steps per point"
        detail = f"{run.name} · steps {span[0]:,} to {span[1]:,} · {len(layers):,} layers{each}"
        title(self.canvas, quantity.replace("_", " "), detail)
        self.steps = Steps(grid.first, grid.width, grid.columns)
        self.reach = self.box = Box(left, top, style.width - left - right, max(style.pixels(60), height - top - below))
        bands = (Cell.NONFINITE in grid.kinds, Cell.ZERO in grid.kinds)
        upper, lower = (style.pixels(_BAND) if band else 0 for band in bands)
        self.plot = Box(left, top + upper, self.box.width, self.box.height - upper - lower)
        drawn = [row for row in range(len(layers)) if (grid.cells[row] == Cell.VALUE).any()]
        self.inks = dict(zip(drawn, line_colours(style.palette, len(drawn), style.inks.paper)))
        self._scale()
        self._lines()
        self._bands()
        step_axis(self.canvas, self.box, self.steps)
        self._names()
        self._legend(self.box.bottom + style.pixels(44))

    def _scale(self) -> None:
        style, plot = self.style, self.plot
        self.canvas.outline(self.box, style.inks.rule)
        for level, text in ticks_of(self.grid.scale, max(2, plot.height // style.pixels(50))):
            y = plot.bottom - 1 - level * (plot.height - 1)
            self.canvas.rule((plot.left, y), (plot.right - 1, y), style.inks.rule)
            self.canvas.text((plot.left - style.pixels(8), y), text, colour=style.inks.quiet, anchor="rm")

    def _across(self, column: int) -> float:
        return self.steps.across(self.box, self.steps.first + (column + 0.5) * self.steps.width)

    def _lines(self) -> None:
        """A line goes on over steps that were not sampled, and breaks where a value was not finite, zero or absent."""
        plot, levels = self.plot, levels_of(self.grid.scale, self.grid.values)
        heights = plot.bottom - 1 - levels.astype(np.float64) * (plot.height - 1)
        width = self.style.pixels(2) if len(self.inks) <= _NAMED else self.style.pixels(1)
        strokes: list[Stroke] = []
        for row, ink in self.inks.items():
            cells = self.grid.cells[row]
            there = np.flatnonzero(cells == Cell.VALUE)
            broken = np.cumsum((cells != Cell.VALUE) & (cells != Cell.NOT_SAMPLED))[there]
            for piece in np.split(there, np.flatnonzero(np.diff(broken)) + 1):
                points = [(self._across(int(column)), float(heights[row, column])) for column in piece]
                strokes += [Stroke(points, ink, width)] if points else []
        self.canvas.strokes(self.box, strokes)

    def _bands(self) -> None:
        """Above the scale where a layer is not finite, below it where one is exactly zero."""
        style, box = self.style, self.box
        bands = ((Cell.NONFINITE, box.top, "not finite"), (Cell.ZERO, self.plot.bottom, "zero"))
        for cell, top, word in bands:
            if cell not in self.grid.kinds:
                continue
            mark = style.palette.marks[cell]
            columns = np.flatnonzero((self.grid.cells == cell).any(0))
            for piece in np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1):
                start = int(self.steps.across(box, self.steps.first + int(piece[0]) * self.steps.width))
                end = int(self.steps.across(box, self.steps.first + int(piece[-1] + 1) * self.steps.width))
                high = style.pixels(_BAND) // 2
                self.canvas.fill_with(Box(start, top + high // 2, max(2, end - start), high), mark)
            away = style.pixels(3) * (-1 if cell is Cell.NONFINITE else 1)  # from the number at the end of the scale
            middle = (box.left - style.pixels(8), top + style.pixels(_BAND) / 2 + away)
            self.canvas.text(middle, word, colour=style.inks.quiet, anchor="rm")

    def _names(self) -> None:
        """To the right of where lines end, moved apart, with a fine line from the one to the other."""
        style, grid = self.style, self.grid
        ends: list[tuple[float, int, int]] = []
        for row in self.inks:
            newest = int(np.flatnonzero(grid.cells[row] == Cell.VALUE)[-1])
            level = float(levels_of(grid.scale, grid.values[row, newest : newest + 1])[0])
            ends.append((self.plot.bottom - 1 - level * (self.plot.height - 1), row, newest))
        ends.sort()
        if len(ends) > _NAMED:
            ends = [*ends[: _NAMED // 2], *ends[-(_NAMED // 2) :]]
        places = _apart([y for y, _, _ in ends], self.box.top, self.box.bottom, style.pixels(17))
        room = style.width - style.margin - self.box.right - style.pixels(24)
        leads: list[Stroke] = []
        for (y, row, column), place in zip(ends, places):
            start = self.box.right + 1, y
            leads.append(Stroke([start, (self.box.right + style.pixels(18), place)], self.inks[row], style.pixels(1)))
            if column < grid.columns - 1:  # it ended before: the name stands at the height of its last number
                leads.append(Stroke([(self._across(column), y)], self.inks[row], style.pixels(2)))
            left = self.box.right + style.pixels(23)
            self.canvas.text((left, place), grid.rows[row], anchor="lm", room=room)
        side = Box(self.box.left, 0, style.width - self.box.left, self.canvas.image.height)
        self.canvas.strokes(side, leads)

    def _legend(self, top: int) -> None:
        """Which colour is which place in the network, and what gaps and bands mean."""
        style, quiet = self.style, self.style.inks.quiet
        x, inks = style.margin, list(self.inks.values())
        if len(inks) > 1:
            bar = Box(x + style.pixels(46), top, style.pixels(160), style.pixels(14))
            self.canvas.text((x, top + style.pixels(7)), "first", colour=quiet, anchor="lm")
            for place in range(bar.width):
                ink = inks[place * len(inks) // bar.width]
                self.canvas.fill(Box(bar.left + place, bar.top, 1, bar.height), ink)
            words = "last layer as executed"
            self.canvas.text((bar.right + style.pixels(10), top + style.pixels(7)), words, colour=quiet, anchor="lm")
            x = bar.right + style.pixels(200)
        patch = Box(x, top, style.pixels(16), style.pixels(14))
        self.canvas.fill_with(patch, style.palette.marks[Cell.NONFINITE])
        self.canvas.outline(patch, quiet)
        marks = "not finite: band at the top · lines join what was sampled"
        absent = {Cell.NO_GRADIENT, Cell.FROZEN} & self.grid.kinds
        marks += " · no line: no gradient or frozen" if absent else ""
        room = style.width - style.margin - patch.right - style.pixels(6)
        place = (patch.right + style.pixels(6), top + style.pixels(7))
        self.canvas.text(place, marks, colour=quiet, anchor="lm", room=room)


def _scale_of(grid: Grid) -> Scale:
    """Wide enough for every line: a colour may be cut off at the end of its scale, a line must not."""
    values = grid.values[np.isfinite(grid.values)].astype(np.float64)
    scale = grid.scale
    if not values.size:
        return scale
    if scale.kind is ScaleKind.LOGARITHMIC:
        low, high = math.floor(math.log10(values.min())), math.ceil(math.log10(values.max()))
        return replace(scale, low=10.0**low, high=10.0 ** max(high, low + 1))
    if scale.kind is ScaleKind.SIGNED:
        return replace(scale, high=max(scale.high, float(np.abs(values).max())))
    return replace(scale, low=min(scale.low, float(values.min())), high=max(scale.high, float(values.max())))


def _apart(places: list[float], top: float, bottom: float, distance: float) -> list[float]:
    """Moved as little as needed to keep that distance, in the same order."""
    if len(places) * distance > bottom - top:
        return np.linspace(top + distance / 2, bottom - distance / 2, len(places)).tolist()
    moved = list(places)
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + distance)
    limit = bottom
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], limit)
        limit = moved[index] - distance
    return moved
