"""The colours around the data, on light and on dark paper, and lines that stand out from it."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from undertow.views.palette import Colour, Palette, contrast

_VISIBLE = 3.0  # WCAG: the contrast that a line needs


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
    visible = shades[contrast(shades, paper) >= _VISIBLE]
    places = [len(visible) // 2] if count == 1 else np.linspace(0, len(visible) - 1, count).astype(int)
    return [(red, green, blue) for red, green, blue in visible[places].tolist()]
