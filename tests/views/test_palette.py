"""Every palette: more is lighter, marks are no numbers, and nobody needs to see all colours for it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from tests.views.vision import VISIONS, nearest, seen

from undertow.errors import SettingError
from undertow.schema.seeds.flow_records import ColorScheme
from undertow.views.palette import INKS, NAMES, Cell, Pattern, Theme, contrast, line_colours, luminance, palette_of

SHADES = np.linspace(0, 1, 256, dtype=np.float32)
EIGHT = np.linspace(0, 1, 8, dtype=np.float32)
PLAIN = 10.0  # a difference that one need not look for
COLOURED = [scheme for scheme in ColorScheme if scheme is not ColorScheme.MONOCHROME]


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", list(ColorScheme))
def test_more_is_lighter_for_everybody(scheme: ColorScheme, vision: str) -> None:
    lightness = seen(palette_of(scheme).sequential(SHADES), vision)[:, 0]
    assert (np.diff(lightness) > -0.7).all()  # colours are whole numbers: neighbours may be off by rounding
    assert (np.diff(lightness[::16]) > 2).all()
    assert lightness[-1] - lightness[0] > 65


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", list(ColorScheme))
def test_eight_levels_are_told_apart(scheme: ColorScheme, vision: str) -> None:
    shades = palette_of(scheme).sequential(EIGHT)
    assert min(nearest(one, other, vision) for one, other in combinations(shades, 2)) > 7


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", list(ColorScheme))
def test_the_sides_of_zero_are_told_apart(scheme: ColorScheme, vision: str) -> None:
    shades = palette_of(scheme).diverging(SHADES)
    for away in (40, 80, 127):
        assert nearest(shades[127 - away], shades[128 + away], vision) > PLAIN
        assert nearest(shades[127 - away], shades[128], vision) > PLAIN
        assert nearest(shades[128 + away], shades[128], vision) > PLAIN


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", COLOURED)
def test_no_mark_looks_like_a_number_or_another_mark(scheme: ColorScheme, vision: str) -> None:
    palette = palette_of(scheme)
    shades = palette.sequential(SHADES)
    for mark in palette.marks.values():
        assert nearest(mark.colour, shades, vision) > PLAIN, mark.name
    for one, other in combinations(palette.marks.values(), 2):
        assert nearest(one.colour, other.colour, vision) > PLAIN, (one.name, other.name)


def test_without_colours_marks_are_black_white_or_have_a_pattern() -> None:
    palette = palette_of(ColorScheme.MONOCHROME)
    everything = [*palette.sequential(SHADES).tolist(), *(mark.colour for mark in palette.marks.values())]
    assert all(red == green == blue for red, green, blue in everything)
    shades = palette.sequential(SHADES)
    for mark in palette.marks.values():
        assert nearest(mark.colour, shades, "usual") > 7
    assert len({(mark.colour, mark.pattern) for mark in palette.marks.values()}) == len(palette.marks)


@pytest.mark.parametrize("scheme", list(ColorScheme))
def test_patterns_can_be_seen_on_their_ground(scheme: ColorScheme) -> None:
    marks = palette_of(scheme).marks
    assert set(marks) == set(Cell) - {Cell.VALUE}
    for mark in marks.values():
        if mark.pattern is not Pattern.PLAIN:
            assert contrast(mark.colour, mark.over) >= 3, mark.name
    assert marks[Cell.NONFINITE].pattern is Pattern.HATCH


@pytest.mark.parametrize("theme", list(Theme))
def test_text_can_be_read_and_lines_can_be_seen(theme: Theme) -> None:
    inks = INKS[theme]
    assert contrast(inks.text, inks.paper) >= 12
    assert contrast(inks.quiet, inks.paper) >= 4.5
    for scheme in ColorScheme:
        for count in (1, 2, 5, 12):
            colours = line_colours(palette_of(scheme), count, inks.paper)
            assert len(set(colours)) == count
            assert min(float(contrast(colour, inks.paper)) for colour in colours) >= 3


def test_contrast_is_that_of_wcag() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)
    assert luminance((255, 255, 255)) == pytest.approx(1)


def test_palettes_are_found_however_they_are_spelt() -> None:
    spellings = ("colour-blind", "ColorBlind", "color_blind", "Colour blind")
    assert {palette_of(name).scheme for name in spellings} == {ColorScheme.COLOR_BLIND}
    assert {palette_of(name).scheme for name in NAMES} == set(ColorScheme)
    with pytest.raises(SettingError, match="high-contrast"):
        palette_of("rainbow")
