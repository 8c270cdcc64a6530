"""What stands around the data: title, axis of steps, colour scale with its marks, the loss below."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from undertow.show.pictures.canvas import Box, Canvas, Stroke
from undertow.views.line_points import Line
from undertow.views.palette import Cell, line_colours
from undertow.views.scale import Scale, number, ticks_of

_ALWAYS = (Cell.NONFINITE, Cell.NOT_SAMPLED)  # in every legend: who looks for them must learn that they would be seen
_SOMETIMES = (Cell.ZERO, Cell.NO_GRADIENT, Cell.FROZEN)


@dataclass(frozen=True, slots=True)
class Steps:
    """Where steps lie across a picture."""

    first: int
    width: int  # steps in a column
    columns: int

    def across(self, box: Box, step: float) -> float:
        return box.left + box.width * (step - self.first) / (self.width * max(1, self.columns))

    def name(self, column: int) -> str:
        start = self.first + column * self.width
        return f"step {start:,}" if self.width == 1 else f"steps {start:,} to {start + self.width - 1:,}"


def title(canvas: Canvas, words: str, details: str) -> None:
    """At the top."""
    style = canvas.style
    room = style.width - 2 * style.margin - style.pixels(300)
    canvas.text((style.margin, style.margin), words, size=style.pixels(22), room=room)
    below = style.margin + style.pixels(32)
    canvas.text((style.margin, below), details, colour=style.inks.quiet, room=style.width - 2 * style.margin)


def step_name(canvas: Canvas, words: str) -> None:
    style = canvas.style
    place = (style.width - style.margin, style.margin)
    canvas.text(place, words, size=style.pixels(22), anchor="ra", room=style.pixels(290))


def step_axis(canvas: Canvas, box: Box, steps: Steps) -> None:
    """Below the box."""
    style = canvas.style
    every = _round_number(steps.width * steps.columns * style.pixels(110) / max(1, box.width))
    start = -(-steps.first // every) * every
    ended = -1.0
    for step in range(start, steps.first + steps.width * steps.columns, every):
        middle = steps.across(box, step + min(steps.width, 1) / 2)
        half = style.typeface.width(f"{step:,}", style.small) / 2
        x = max(box.left + half, min(middle, box.right - half))
        if x - half < ended + style.pixels(8):
            continue
        canvas.rule((middle, box.bottom), (middle, box.bottom + style.pixels(4)), style.inks.quiet)
        canvas.text((x, box.bottom + style.pixels(7)), f"{step:,}", colour=style.inks.quiet, anchor="ma")
        ended = x + half
    name = (box.left - style.pixels(10), box.bottom + style.pixels(7))
    canvas.text(name, "step", colour=style.inks.quiet, anchor="ra")


def _round_number(least: float) -> int:
    return next(factor * 10**power for power in count() for factor in (1, 2, 5) if factor * 10**power >= least)


def legend(canvas: Canvas, top: int, left: int, scale: Scale, kinds: set[Cell], words: Sequence[str] = ()) -> None:
    """The colour scale with its numbers, then a patch and a word for each mark, then further words."""
    style = canvas.style
    bar = Box(left, top, style.pixels(240), style.pixels(14))
    levels = np.linspace(0, 1, bar.width, dtype=np.float32)
    mix = style.palette.diverging if scale.diverging else style.palette.sequential
    canvas.paste((bar.left, bar.top), np.repeat(mix(levels)[None], bar.height, 0))
    canvas.outline(bar, style.inks.quiet)
    for level, text in ticks_of(scale, 5):
        x = bar.left + level * (bar.width - 1)
        canvas.rule((x, bar.bottom), (x, bar.bottom + style.pixels(4)), style.inks.quiet)
        anchor = "ma" if level > 0 else "la"  # the first one starts at the margin
        canvas.text((x, bar.bottom + style.pixels(6)), text, colour=style.inks.quiet, anchor=anchor)
    x = bar.right + style.pixels(36)
    start = x
    shown = [*(cell for cell in _SOMETIMES if cell in kinds), *_ALWAYS]
    for cell in shown:
        mark = style.palette.marks[cell]
        name = "not sampled (tint: last seen)" if cell is Cell.NOT_SAMPLED else mark.name
        wide = style.typeface.width(name, style.small) + style.pixels(44)
        if x + wide > style.width - style.margin:
            x, top = start, top + style.pixels(22)
        patch = Box(int(x), top, style.pixels(16), style.pixels(14))
        canvas.fill_with(patch, mark)
        canvas.outline(patch, style.inks.quiet)
        canvas.text((patch.right + style.pixels(6), top + style.pixels(7)), name, anchor="lm")
        x += wide
    for text in words:
        wide = style.typeface.width(text, style.small) + style.pixels(28)
        if x + wide > style.width - style.margin + style.pixels(28):
            x, top = start, top + style.pixels(22)
        canvas.text((x, top + style.pixels(7)), text, colour=style.inks.quiet, anchor="lm")
        x += wide


LEGEND_HEIGHT = 62  # in the pixels of a picture of the usual width


def scalar_strip(canvas: Canvas, box: Box, steps: Steps, line: Line, name: str) -> None:
    """A small curve over the same steps as what stands above it; marked where it is not finite."""
    style = canvas.style
    told = ~np.isnan(line.mean)
    low, high = (float(line.minimum[told].min()), float(line.maximum[told].max())) if told.any() else (0.0, 1.0)
    if high == low:
        low, high = low - 1, high + 1  # a level line in the middle
    canvas.outline(box, style.inks.rule)
    ink = line_colours(style.palette, 1, style.inks.paper)[0]
    bad = style.palette.marks[Cell.NONFINITE]
    inner, room = box.height - style.pixels(8), style.pixels(4)
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, step in enumerate(line.steps.tolist()):
        x = min(steps.across(box, step + 0.5), box.right - 1)
        if line.nonfinite[place]:
            pieces.append([])
            canvas.fill_with(Box(int(x) - 1, box.top, min(style.pixels(3), box.right - int(x) + 1), box.height), bad)
        if told[place]:
            ends = (float(line.minimum[place]), float(line.maximum[place]))
            pieces[-1] += [
                (x, box.bottom - room - inner * (value - low) / (high - low)) for value in dict.fromkeys(ends)
            ]
    canvas.strokes(box, [Stroke(points, ink, style.pixels(2)) for points in pieces if points])
    edge = box.left - style.pixels(10)
    canvas.text((edge, box.top), number(high) if told.any() else "", colour=style.inks.quiet, anchor="ra")
    canvas.text((edge, box.bottom), number(low) if told.any() else "", colour=style.inks.quiet, anchor="rs")
    canvas.text((edge, (box.top + box.bottom) / 2), name, anchor="rm", room=box.left - 2 * style.pixels(10))
