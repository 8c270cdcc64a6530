"""Pictures in files: PNG, GIF, WebP with Pillow, MP4 with PyAV. Colours mean the same in every frame."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from undertow.errors import SettingError
from undertow.show.pictures.canvas import Style
from undertow.show.pictures.vector import svg_of
from undertow.store.exports import MissingPackageError
from undertow.views.grid import tinted
from undertow.views.palette import Colour

# Called with the frames done and the frames in all.
Progress = Callable[[int, int], None]
_WEBP = {"lossless": True, "method": 2, "kmin": 9999, "kmax": 10000}  # whole frames in between only cost room
_CODECS = {"libx264": {"crf": "16"}, "mpeg4": {"qscale": "3"}}  # the best one there is
_GIF_PIXELS = 600_000_000  # of all frames together: so many bytes of memory are taken
_REST = 1.5  # seconds that the last frame stays before an animation begins again


class Picture(Protocol):
    @property
    def frames(self) -> int: ...
    def still(self) -> Image.Image: ...
    def frame(self, column: int) -> Image.Image: ...


def save_still(picture: Picture, path: Path, kind: str) -> None:
    if kind == "svg":
        path.write_text(svg_of(picture.still()), encoding="utf-8")
        return
    picture.still().save(path, format=kind.upper(), **({"lossless": True} if kind == "webp" else {}))


def save_animation(
    picture: Picture, path: Path, kind: str, style: Style, frames: int, per_second: float, progress: Progress
) -> None:
    """At most that many frames, evenly over the columns of the picture; the last column is always the last frame."""
    count = min(frames, picture.frames)
    columns = [(number + 1) * picture.frames // count - 1 for number in range(count)]

    def drawn() -> Iterator[Image.Image]:
        for done, column in enumerate(columns):
            progress(done, count)
            yield picture.frame(column)
        progress(count, count)

    durations = [round(1000 / per_second)] * (count - 1) + [round(1000 * _REST)]
    if kind == "mp4":
        _save_mp4(drawn(), path, per_second)
    elif kind == "webp":
        _one_for_all(drawn(), count).save(path, "WEBP", save_all=True, duration=durations, loop=0, **_WEBP)
    else:
        _mind_memory(picture, count)
        table = _table(style)
        images = (image.quantize(palette=table, dither=Image.Dither.NONE) for image in drawn())
        first = next(images)
        options = {"append_images": images, "optimize": True, "disposal": 1}
        first.save(path, "GIF", save_all=True, duration=durations, loop=0, **options)


def _one_for_all(images: Iterator[Image.Image], count: int) -> Image.Image:
    """An image that turns into the next frame when it is asked to: of a list, Pillow would keep all in memory."""
    sheet = next(images).copy()
    shown = 0

    def seek(number: int) -> None:
        nonlocal shown
        if number == shown + 1:
            sheet.paste(next(images))
            shown = number
        if number == count - 1:
            next(images, None)  # tells that all is done

    vars(sheet).update(n_frames=count, seek=seek)
    return sheet


def _mind_memory(picture: Picture, count: int) -> None:
    """Pillow keeps all frames of a GIF until the last one is there, a byte per pixel."""
    first = picture.frame(0)
    most = _GIF_PIXELS // (first.width * first.height)
    if count > most:
        raise SettingError(
            f"{count} frames of {first.width} × {first.height} pixels are too many for a GIF",
            way_out=f"Use --frames {most}, a smaller --size, --to webp or --to mp4",
        )


def _table(style: Style) -> Image.Image:
    """The colours of a GIF, the same for all frames: shades of both scales, tints, marks, and text on paper.

    One of the 256 is left for "as before", with which frames are far smaller.
    """
    palette, inks = style.palette, style.inks
    marks = [colour for mark in palette.marks.values() for colour in (mark.colour, mark.over)]
    fixed = list(dict.fromkeys([inks.paper, inks.text, inks.quiet, inks.rule, *marks]))
    greys = [*_between(inks.paper, inks.text, 30), *_between(inks.paper, inks.quiet, 14)]
    room = 255 - len(fixed) - len(greys)
    shades = palette.sequential(np.linspace(0, 1, 6 * room // 10, dtype=np.float32))
    seen = palette.sequential(np.linspace(0, 1, room // 8, dtype=np.float32))
    tints = tinted(
        np.concatenate([seen, np.array([mark.colour for mark in palette.marks.values()], np.uint8)]), palette
    )
    sides = palette.diverging(np.linspace(0, 1, room - len(shades) - len(tints), dtype=np.float32))
    colours = np.concatenate([np.array([*fixed, *greys], np.uint8), shades, tints, sides])
    table = Image.new("P", (1, 1))
    table.putpalette(colours.tobytes())
    return table


def _between(one: Colour, other: Colour, count: int) -> list[Colour]:
    steps = np.linspace(one, other, count + 2)[1:-1].round().astype(int).tolist()
    return [(red, green, blue) for red, green, blue in steps]


def _save_mp4(images: Iterator[Image.Image], path: Path, per_second: float) -> None:
    if importlib.util.find_spec("av") is None:
        raise MissingPackageError(
            "MP4 needs the package av, which is not installed",
            way_out='pip install "undertow[video]", or use --to gif or --to webp',
        )
    av: Any = importlib.import_module("av")  # its types leave half of it open
    rate = Fraction(per_second).limit_denominator(1000)
    with av.open(str(path), "w", format="mp4") as container:
        first = next(images)
        size = first.width - first.width % 2, first.height - first.height % 2  # halves of colour need even sides
        codec = next(name for name in _CODECS if name in av.codecs_available)
        stream = container.add_stream(codec, rate=rate, options=_CODECS[codec])
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"

        def with_rest() -> Iterator[Image.Image]:
            last = first
            yield first
            for last in images:
                yield last
            yield from [last] * round(_REST * per_second)

        for image in with_rest():
            container.mux(stream.encode(av.VideoFrame.from_image(image.crop((0, 0, *size)))))
        container.mux(stream.encode())
