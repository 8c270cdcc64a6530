"""Colours, before any medium knows how to show them: `palette_of` has everything a picture needs.

A palette is a scale for numbers, a scale with two sides, and marks for cells without a number. A mark is told from
every number by its colour, also by people who see fewer colours, and by a pattern where there is room for one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import NDArray

from undertow.errors import SettingError
from undertow.schema.seeds.flow_records import ColorScheme

Colour = tuple[int, int, int]


class Cell(IntEnum):
    """What a cell of layer × step says. Later ones win when several steps fall into one cell."""

    NOT_SAMPLED = 0
    FROZEN = 1
    NO_GRADIENT = 2
    ZERO = 3
    VALUE = 4
    NONFINITE = 5


class Pattern(StrEnum):
    """What tells a mark where colour cannot."""

    PLAIN = "plain"
    HATCH = "hatch"  # diagonal lines
    LINES = "lines"  # level lines
    DOTS = "dots"
    STIPPLE = "stipple"  # few small dots: almost plain


@dataclass(frozen=True, slots=True)
class Mark:
    """How a cell without a number looks."""

    name: str
    colour: Colour
    pattern: Pattern = Pattern.PLAIN
    over: Colour = (255, 255, 255)  # of the lines or dots


@dataclass(frozen=True, slots=True)
class Palette:
    scheme: ColorScheme
    marks: Mapping[Cell, Mark]

    def sequential(self, levels: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Red, green and blue for levels from 0 to 1; the last axis is the colour."""
        return _mix(levels, SEQUENTIAL[self.scheme])

    def diverging(self, levels: NDArray[np.float32]) -> NDArray[np.uint8]:
        """The same for numbers of either sign: 0.5 is zero."""
        return _mix(levels, _DIVERGING[self.scheme])


# Nine stops of a scale that grows evenly in lightness, from deep violet over teal to yellow, so that it
# still reads in grey and with any colour vision; between them colours are mixed linearly.
_STOPS = np.array(
    [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141),
     (39, 173, 129), (92, 200, 99), (170, 220, 50), (253, 231, 37)], np.float64,
)  # fmt: skip
_COLOUR_BLIND = np.array(
    [(0, 34, 78), (18, 53, 112), (59, 73, 108), (87, 93, 109), (112, 113, 115),
     (138, 134, 120), (166, 157, 117), (196, 181, 108), (254, 232, 56)], np.float64,
)  # fmt: skip
_HIGH_CONTRAST = np.array(
    [(0, 0, 0), (58, 0, 64), (122, 4, 82), (181, 30, 60), (224, 76, 24),
     (246, 130, 4), (250, 184, 40), (250, 232, 130), (255, 255, 255)], np.float64,
)  # fmt: skip
_MONOCHROME = np.array([(28, 28, 28), (232, 232, 232)], np.float64)  # black and white are left to the marks

# The palettes of the original: dark is little, light is much, evenly, in every one of them.
SEQUENTIAL = {
    ColorScheme.DEFAULT: _STOPS,
    ColorScheme.HIGH_CONTRAST: _HIGH_CONTRAST,
    ColorScheme.COLOR_BLIND: _COLOUR_BLIND,
    ColorScheme.MONOCHROME: _MONOCHROME,
}

# Two hues that every eye tells apart, through a light grey that is neither.
_BLUE_ORANGE = np.array(
    [(5, 72, 132), (52, 120, 182), (129, 178, 216), (201, 221, 236), (243, 243, 242),
     (250, 216, 183), (241, 164, 96), (208, 105, 24), (140, 60, 4)], np.float64,
)  # fmt: skip
_DIVERGING = {
    ColorScheme.DEFAULT: _BLUE_ORANGE,
    ColorScheme.COLOR_BLIND: _BLUE_ORANGE,
    ColorScheme.HIGH_CONTRAST: np.array(
        [(0, 10, 70), (0, 62, 158), (60, 140, 226), (176, 212, 246), (255, 255, 255),
         (252, 204, 150), (228, 118, 20), (158, 60, 0), (66, 18, 0)], np.float64,
    ),
    ColorScheme.MONOCHROME: _MONOCHROME,  # without hues, dark is one side and light the other
}  # fmt: skip

_COLOURED = {
    Cell.NONFINITE: Mark("not finite", (224, 40, 255), Pattern.HATCH, (255, 255, 255)),
    Cell.NO_GRADIENT: Mark("no gradient", (153, 51, 0), Pattern.DOTS, (255, 220, 190)),
    Cell.FROZEN: Mark("frozen", (153, 153, 238), Pattern.LINES, (70, 70, 150)),
    Cell.NOT_SAMPLED: Mark("not sampled", (187, 187, 187)),
    Cell.ZERO: Mark("zero", (0, 0, 0)),
}
_MARKS = {
    ColorScheme.DEFAULT: _COLOURED,
    ColorScheme.COLOR_BLIND: _COLOURED,
    ColorScheme.HIGH_CONTRAST: _COLOURED
    | {
        Cell.NO_GRADIENT: Mark("no gradient", (187, 153, 119), Pattern.DOTS, (40, 20, 0)),
        Cell.FROZEN: Mark("frozen", (119, 204, 255), Pattern.LINES, (0, 60, 110)),
        Cell.NOT_SAMPLED: Mark("not sampled", (153, 153, 153)),
        Cell.ZERO: Mark("zero", (0, 51, 0)),
    },
    ColorScheme.MONOCHROME: {
        Cell.NONFINITE: Mark("not finite", (0, 0, 0), Pattern.HATCH, (255, 255, 255)),
        Cell.NO_GRADIENT: Mark("no gradient", (255, 255, 255), Pattern.DOTS, (0, 0, 0)),
        Cell.FROZEN: Mark("frozen", (255, 255, 255), Pattern.LINES, (0, 0, 0)),
        Cell.NOT_SAMPLED: Mark("not sampled", (255, 255, 255), Pattern.STIPPLE, (90, 90, 90)),
        Cell.ZERO: Mark("zero", (0, 0, 0), Pattern.STIPPLE, (160, 160, 160)),
    },
}

# As people type them; the names of the original are understood, too.
NAMES = {
    "default": ColorScheme.DEFAULT,
    "high-contrast": ColorScheme.HIGH_CONTRAST,
    "colour-blind": ColorScheme.COLOR_BLIND,
    "monochrome": ColorScheme.MONOCHROME,
}


def palette_of(name: ColorScheme | str = ColorScheme.DEFAULT) -> Palette:
    """The palette of that name, however it is spelt: `colour-blind`, `ColorBlind`, `color blind`."""
    key = "".join(letter for letter in str(name).casefold() if letter.isalnum()).replace("colour", "color")
    for scheme in ColorScheme:
        if scheme.casefold() == key:
            return Palette(scheme, _MARKS[scheme])
    raise SettingError(f"there is no palette {str(name)!r}", way_out=f"There are: {', '.join(NAMES)}")


def _mix(levels: NDArray[np.float32], stops: NDArray[np.float64]) -> NDArray[np.uint8]:
    places = np.clip(np.nan_to_num(levels.astype(np.float64)), 0, 1) * (len(stops) - 1)
    channels = [np.interp(places, np.arange(len(stops)), stops[:, channel]) for channel in range(3)]
    return np.stack(channels, -1).round().astype(np.uint8)


def luminance(colours: NDArray[np.uint8] | Colour) -> NDArray[np.float64]:
    """Relative luminance of sRGB colours, as WCAG defines it."""
    channels = np.asarray(colours, np.float64) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def contrast(one: NDArray[np.uint8] | Colour, other: Colour) -> NDArray[np.float64]:
    """WCAG contrast, from 1 to 21: text needs 4.5, lines and shapes 3."""
    lights = luminance(one), luminance(other)
    return (np.maximum(*lights) + 0.05) / (np.minimum(*lights) + 0.05)


class Theme(StrEnum):
    LIGHT = "light"
    DARK = "dark"


@dataclass(frozen=True, slots=True)
class Inks:
    paper: Colour
    text: Colour
    quiet: Colour  # text of less weight
    rule: Colour  # lines that only guide the eye


INKS = {
    Theme.LIGHT: Inks((255, 255, 255), (24, 28, 34), (92, 99, 110), (222, 225, 230)),
    Theme.DARK: Inks((18, 20, 24), (232, 234, 237), (160, 167, 178), (52, 57, 66)),
}


def line_colours(palette: Palette, count: int, paper: Colour) -> list[Colour]:
    """As many colours of the palette, in order, as there are lines: only those that can be seen on this paper."""
    shades = palette.sequential(np.linspace(0, 1, 256, dtype=np.float32))
    visible = shades[contrast(shades, paper) >= 3.0]  # as WCAG asks of lines
    places = [len(visible) // 2] if count == 1 else np.linspace(0, len(visible) - 1, count).astype(int)
    return [(red, green, blue) for red, green, blue in visible[places].tolist()]
