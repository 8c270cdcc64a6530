"""A sheet that also keeps what is drawn on it as SVG."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from undertow.show.pictures.canvas import Box, Canvas, Stroke, Style
from undertow.views.palette import Colour

SVG = "svg"  # where an image that was drawn on such a sheet has its elements
_ACROSS = {"l": "start", "m": "middle", "r": "end"}
_DOWN = {"a": "text-before-edge", "m": "central", "s": "alphabetic"}


class VectorCanvas(Canvas):
    def __init__(self, style: Style, height: int, image: Image.Image | None = None) -> None:
        super().__init__(style, height, image)
        self._elements: list[str] = list(self.image.info.get(SVG, []))
        self.image.info[SVG] = self._elements
        if image is None:
            self.fill(Box(0, 0, style.width, height), style.inks.paper)

    def copy(self) -> VectorCanvas:
        return VectorCanvas(self.style, self.image.height, self.image.copy())

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
        super().text(place, words, size=size, colour=colour, anchor=anchor, room=room)
        typeface, pixels = self.style.typeface, size or self.style.small
        shown = typeface.legible(words) if room is None else typeface.fitted(words, room, pixels)
        self._elements.append(
            f'<text x="{place[0]:g}" y="{place[1]:g}" font-size="{pixels}" fill="rgb{colour or self.style.inks.text}" '
            f'text-anchor="{_ACROSS[anchor[0]]}" dominant-baseline="{_DOWN[anchor[1]]}">{escape(shown)}</text>'
        )

    def fill(self, box: Box, colour: Colour) -> None:
        super().fill(box, colour)
        if box.width > 0 and box.height > 0:
            self._elements.append(f'<rect {_within(box)} fill="rgb{colour}"/>')

    def outline(self, box: Box, colour: Colour) -> None:
        super().outline(box, colour)
        self._elements.append(f'<rect {_within(box)} fill="none" stroke="rgb{colour}"/>')

    def rule(self, start: tuple[float, float], end: tuple[float, float], colour: Colour, width: int = 1) -> None:
        super().rule(start, end, colour, width)
        self._line([start, end], colour, width)

    def paste(self, place: tuple[int, int], pixels: NDArray[np.uint8]) -> None:
        super().paste(place, pixels)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        data = base64.b64encode(file.getvalue()).decode()
        high, wide = pixels.shape[:2]
        self._elements.append(
            f'<image {_within(Box(*place, wide, high))} image-rendering="pixelated" '
            f'href="data:image/png;base64,{data}"/>'
        )

    def strokes(self, box: Box, lines: Sequence[Stroke]) -> None:
        super().strokes(box, lines)
        for stroke in lines:
            if len(stroke.points) > 1:
                self._line(stroke.points, stroke.colour, stroke.width)
            else:
                ((x, y),) = stroke.points
                self._elements.append(
                    f'<circle cx="{x:g}" cy="{y:g}" r="{0.9 * stroke.width:g}" fill="rgb{stroke.colour}"/>'
                )

    def _line(self, points: Sequence[tuple[float, float]], colour: Colour, width: float) -> None:
        places = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._elements.append(
            f'<polyline points="{places}" fill="none" stroke="rgb{colour}" stroke-width="{width:g}"/>'
        )


def _within(box: Box) -> str:
    return f'x="{box.left}" y="{box.top}" width="{box.width}" height="{box.height}"'


def svg_of(image: Image.Image) -> str:
    """Of an image that was drawn on a `VectorCanvas`."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {image.width} {image.height}" font-family="sans-serif">'
    )
    return "\n".join([head, *image.info[SVG], "</svg>\n"])
