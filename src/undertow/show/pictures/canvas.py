"""A sheet to draw on: text, boxes, and smooth lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from undertow.show.pictures.typeface import Typeface
from undertow.views.palette import Colour, Inks, Mark, Palette, Pattern

_FINER = 3  # lines are drawn that much larger and reduced: Pillow has no smooth ones


@dataclass(frozen=True, slots=True)
class Box:
    left: int
    top: int
    width: int
    height: int

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def bottom(self) -> int:
        return self.top + self.height


@dataclass(frozen=True, slots=True)
class Style:
    """What all parts of a picture share."""

    palette: Palette
    inks: Inks
    typeface: Typeface
    width: int = 1200
    height: int | None = None  # None: as much as the content asks for
    sheet: Callable[[Style, int], Canvas] | None = None  # what to draw on; None: pixels

    def pixels(self, length: float) -> int:
        """A length meant for a picture of the usual size: text grows with the picture."""
        scale = self.width / 1200 if self.height is None else min(self.width / 1200, self.height / 420)
        return max(1, round(length * min(4.0, max(0.85, scale))))

    def canvas(self, height: int) -> Canvas:
        return (self.sheet or Canvas)(self, height)

    @property
    def text(self) -> int:
        return self.pixels(15)

    @property
    def small(self) -> int:
        return self.pixels(13)

    @property
    def line(self) -> int:
        """The distance of lines of small text."""
        return self.pixels(18)

    @property
    def margin(self) -> int:
        return self.pixels(24)


class Canvas:
    def __init__(self, style: Style, height: int, image: Image.Image | None = None) -> None:
        self.style = style
        self.image = image or Image.new("RGB", (style.width, height), style.inks.paper)
        self._draw = ImageDraw.Draw(self.image)

    def copy(self) -> Canvas:
        return Canvas(self.style, self.image.height, self.image.copy())

    def text(
        self,
        place: tuple[float, float],
        words: str,
        *,
        size: int | None = None,
        colour: Colour | None = None,
        anchor: str = "la",
        room: float | None = None,
    ) -> None:
        """`anchor` is Pillow's: l, m, r across; a top, m middle, s baseline. Shortened to `room`."""
        typeface, size = self.style.typeface, size or self.style.small
        words = typeface.legible(words) if room is None else typeface.fitted(words, room, size)
        self._draw.text(place, words, fill=colour or self.style.inks.text, font=typeface.font(size), anchor=anchor)

    def fill(self, box: Box, colour: Colour) -> None:
        if box.width > 0 and box.height > 0:
            self._draw.rectangle((box.left, box.top, box.right - 1, box.bottom - 1), fill=colour)

    def fill_with(self, box: Box, mark: Mark) -> None:
        if box.width > 0 and box.height > 0:
            pixels = np.broadcast_to(np.array(mark.colour, np.uint8), (box.height, box.width, 3)).copy()
            where = np.ones((box.height, box.width), np.bool_)
            self.paste(
                (box.left, box.top), with_pattern(pixels, where, mark, self.style.pixels(2), (box.left, box.top))
            )

    def outline(self, box: Box, colour: Colour) -> None:
        self._draw.rectangle((box.left - 1, box.top - 1, box.right, box.bottom), outline=colour)

    def rule(self, start: tuple[float, float], end: tuple[float, float], colour: Colour, width: int = 1) -> None:
        """A level or upright line."""
        self._draw.line((start, end), fill=colour, width=width)

    def paste(self, place: tuple[int, int], pixels: NDArray[np.uint8]) -> None:
        self.image.paste(Image.fromarray(pixels), place)

    def strokes(self, box: Box, lines: Sequence[Stroke]) -> None:
        """Smooth lines within a box, over what is there; points are places on the sheet."""
        if not lines or box.width <= 0 or box.height <= 0:
            return
        part = self.image.crop((box.left, box.top, box.right, box.bottom))
        fine = part.resize((box.width * _FINER, box.height * _FINER), Image.Resampling.NEAREST)
        pen = ImageDraw.Draw(fine)
        for stroke in lines:
            points = [((x - box.left) * _FINER, (y - box.top) * _FINER) for x, y in stroke.points]
            thick = max(1, round(stroke.width * _FINER))
            if len(points) == 1:
                (x, y), radius = points[0], 0.9 * thick
                pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=stroke.colour)
            else:
                pen.line(points, fill=stroke.colour, width=thick, joint="curve")
        self.image.paste(fine.reduce(_FINER), (box.left, box.top))


@dataclass(frozen=True, slots=True)
class Stroke:
    """One point is a dot."""

    points: Sequence[tuple[float, float]]
    colour: Colour
    width: float = 1.5


def with_pattern(
    pixels: NDArray[np.uint8], where: NDArray[np.bool_], mark: Mark, thick: int = 2, origin: tuple[int, int] = (0, 0)
) -> NDArray[np.uint8]:
    """The pattern of a mark over the chosen pixels. It runs on from cell to cell: it belongs to the sheet."""
    if mark.pattern is Pattern.PLAIN or not where.any():
        return pixels
    y, x = np.ogrid[: pixels.shape[0], : pixels.shape[1]]
    x, y = x + origin[0], y + origin[1]
    if mark.pattern is Pattern.HATCH:
        drawn = (x + y) % (4 * thick) < thick
    elif mark.pattern is Pattern.LINES:
        drawn = (y % (3 * thick) < max(1, thick // 2)) & (x == x)
    elif mark.pattern is Pattern.DOTS:
        drawn = ((x % (5 * thick)) // thick == 2) & ((y % (5 * thick)) // thick == 2)
    else:
        dot = max(1, thick // 2)
        drawn = ((x % (12 * dot)) // dot == 3) & ((y % (12 * dot)) // dot == 3)
    pixels[where & drawn] = mark.over
    return pixels
