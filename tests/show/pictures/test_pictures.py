"""What is in a picture: the right colour in the right place, in every palette, whatever the names are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from undertow.errors import SettingError, UnknownNameError
from undertow.run import Run
from undertow.schema.seeds.flow_records import ColorScheme
from undertow.show.pictures.canvas import Box, Style
from undertow.show.pictures.choice import Choice
from undertow.show.pictures.flow import FlowPicture
from undertow.show.pictures.heatmap import HeatmapPicture
from undertow.show.pictures.timelines import TimelinesPicture
from undertow.show.pictures.typeface import Typeface
from undertow.views.grid import tinted
from undertow.views.palette import INKS, Cell, Colour, Theme, palette_of

TYPEFACE = Typeface()


def style(scheme: ColorScheme | str = "default", theme: Theme = Theme.LIGHT, **size: int) -> Style:
    return Style(palette_of(scheme), INKS[theme], TYPEFACE, **size)


def pixels(image: Image.Image, box: Box | None = None) -> NDArray[np.uint8]:
    part = image if box is None else image.crop((box.left, box.top, box.right, box.bottom))
    return np.asarray(part.convert("RGB"))


def share(found: NDArray[np.uint8], colour: Colour) -> float:
    return float((found == np.array(colour, np.uint8)).all(-1).mean())


def cell_of(picture: HeatmapPicture, row: int, step: int) -> NDArray[np.uint8]:
    """The pixels of one cell, without the gap below it."""
    field, rows = picture.field, len(picture.grid.rows)
    each = field.height // rows
    left, right = (round(picture.steps.across(field, end)) for end in (step, step + 1))
    box = Box(left + 1, field.top + row * each + 2, right - left - 2, each - 3)
    return pixels(picture.still(), box)


@pytest.mark.parametrize("theme", list(Theme))
@pytest.mark.parametrize("scheme", list(ColorScheme))
def test_every_cell_has_its_colour(marked: Run, scheme: ColorScheme, theme: Theme) -> None:
    picture = HeatmapPicture(marked, Choice(), style(scheme, theme))
    marks = picture.style.palette.marks
    expected = {(1, 25): Cell.NONFINITE, (2, 5): Cell.ZERO, (3, 5): Cell.NO_GRADIENT, (4, 5): Cell.FROZEN}
    for row in range(6):
        tint = tinted(picture.grid.colours(picture.style.palette)[row, 29], picture.style.palette)
        assert share(cell_of(picture, row, 34), tuple(tint.tolist())) > 0.5, row
    for (row, step), cell in expected.items():
        assert share(cell_of(picture, row, step), marks[cell].colour) > 0.5, (row, step)
        assert len(np.unique(cell_of(picture, row, step).reshape(-1, 3), axis=0)) <= 2  # the mark and its pattern
    lightness = [cell_of(picture, 0, step).astype(int).sum() for step in (0, 15, 29, 45, 59)]
    assert lightness == sorted(lightness)
    assert (cell_of(picture, 0, 0) == cell_of(picture, 5, 59)).all()  # the same number, the same colour


@pytest.mark.parametrize("scheme", list(ColorScheme))
def test_the_legend_always_has_what_is_not_finite_and_not_sampled(broken: Run, scheme: ColorScheme) -> None:
    picture = HeatmapPicture(broken, Choice(last=5), style(scheme, Theme.DARK))
    assert picture.grid.kinds == {Cell.VALUE}
    still = picture.still()
    legend = pixels(still, Box(0, still.height - 90, still.width, 90))
    for cell in (Cell.NONFINITE, Cell.NOT_SAMPLED):
        assert share(legend, picture.style.palette.marks[cell].colour) > 0.0004, cell


def test_an_animation_shows_only_what_was(marked: Run) -> None:
    picture = HeatmapPicture(marked, Choice(), style())
    half = round(picture.steps.across(picture.reach, 30))
    box = Box(half + 3, picture.reach.top, picture.reach.right - half - 3, picture.reach.height)
    ahead = pixels(picture.frame(29), box)
    assert share(ahead, picture.style.inks.paper) == 1.0
    before = Box(picture.reach.left, picture.reach.top, half - picture.reach.left - 1, picture.reach.height)
    assert (pixels(picture.frame(29), before) == pixels(picture.still(), before)).all()


def test_bars_of_the_flow_tell_the_norm_at_their_step(broken: Run) -> None:
    picture = FlowPicture(broken, Choice(), style(), 20)
    assert picture.frames == 20
    assert [row.name for row in picture.flow.rows] == ["first", "second", "third", "head"]
    assert {(link.start, link.end) for link in picture.flow.links} == {(0, 1), (1, 2), (2, 3)}
    bar = Box(picture.track[0], picture.above + 8, picture.track[1], 6)
    bad = picture.style.palette.marks[Cell.NONFINITE].colour
    assert share(pixels(picture.frame(11), bar), bad) == 0
    assert share(pixels(picture.frame(12), bar), bad) > 0.6
    # Weight and bias of 0.1 each: together 0.1 · √2.
    assert picture.flow.grid.values[2, 5] == pytest.approx(0.1 * 2**0.5, rel=0.01)
    assert "not finite" in picture.flow.rows[0].notes


def test_the_loss_below_the_flow_reaches_from_the_first_step_to_the_last(broken: Run) -> None:
    picture = FlowPicture(broken, Choice(), style(), 10)
    first, last, strip = int(broken.steps[0]), int(broken.steps[-1]), picture._strip
    assert picture._over.across(strip, first) == strip.left
    assert picture._over.across(strip, last + 1) == strip.left + strip.width


def test_colours_of_the_flow_stay_the_same_through_the_animation(marked: Run) -> None:
    picture = FlowPicture(marked, Choice(), style(), STEPS_SHOWN)
    rising, falling = picture.colours[0], picture.colours[5]
    assert (rising[0] == falling[-1]).all()
    assert (rising[-1] == falling[0]).all()
    assert (rising[0] != rising[-1]).any()


STEPS_SHOWN = 30


def test_lines_join_what_was_sampled_and_break_where_a_value_was_not_finite(marked: Run) -> None:
    picture = TimelinesPicture(marked, Choice(), style())
    assert list(picture.inks) == [0, 1, 5]
    left, right = (round(picture.steps.across(picture.plot, step)) for step in (31, 39))
    gap = pixels(picture.still(), Box(left, picture.plot.top, right - left, picture.plot.height))
    inks = [*picture.inks.values()]
    assert [share(gap, ink) > 0 for ink in inks] == [True, False, True]
    before = pixels(picture.still(), Box(picture.plot.left, picture.plot.top, left - 60, picture.plot.height))
    assert all(share(before, ink) > 0 for ink in (inks[0], inks[2]))
    mark = picture.style.palette.marks[Cell.NONFINITE].colour
    assert share(pixels(picture.still(), picture.box), mark) > 0.001


@pytest.mark.parametrize("size", [{"width": 640, "height": 320}, {"width": 700}, {"width": 2000, "height": 320}])
def test_hostile_names_and_any_size(hostile: Run, deep: Run, size: dict[str, int]) -> None:
    for run in (hostile, deep):
        for picture in (
            HeatmapPicture(run, Choice(), style(**size)),
            FlowPicture(run, Choice(), style(**size), 3),
            TimelinesPicture(run, Choice(), style(**size)),
        ):
            for image in (picture.still(), picture.frame(0)):
                assert image.width == size["width"]
                assert image.height == size.get("height", image.height)
                # All numbers are finite: this is the last line of the legend, and it is not cut off.
                assert share(pixels(image), picture.style.palette.marks[Cell.NONFINITE].colour) > 0


def test_many_layers_share_lines_and_groups_have_names(deep: Run) -> None:
    picture = HeatmapPicture(deep, Choice(), style(width=1200, height=400))
    assert len(picture.grid.rows) == picture.field.height < len(deep.layers)
    flow = FlowPicture(deep, Choice(), style(), 2).flow
    assert len(flow.rows) <= 40
    assert flow.rows[0].name == "blocks.0 … blocks.1 (12 modules)"
    assert [len(row.modules) for row in flow.rows] == [12] * 30


def test_only_what_was_asked_for(marked: Run) -> None:
    picture = HeatmapPicture(marked, Choice(globs=("blocks.0.*", "blocks.5.*"), first=10, last=19), style())
    assert picture.grid.rows == ("blocks.0.weight", "blocks.5.weight")
    assert (picture.grid.first, picture.grid.columns) == (10, 10)
    whole = HeatmapPicture(marked, Choice(), style())
    assert picture.grid.scale == whole.grid.scale
    with pytest.raises(UnknownNameError, match="blocks"):
        HeatmapPicture(marked, Choice(globs=("head.*",)), style())
    with pytest.raises(SettingError, match="0 to 59"):
        HeatmapPicture(marked, Choice(first=60), style())
    with pytest.raises(SettingError, match="heatmap"):
        FlowPicture(marked, Choice("weight_norm"), style(), 2)


def test_text_is_legible() -> None:
    assert TYPEFACE.legible("blocks.0.weight") == "blocks.0.weight"
    assert TYPEFACE.legible("a\u202eb\x1b[31m\n层") == r"a\u202eb\x1b[31m\n\u5c42"
    assert len(TYPEFACE.legible("n" * 10_000)) < 400
    fitted = TYPEFACE.fitted("blocks.11.attention.out_proj.weight", 140, 15)
    assert TYPEFACE.width(fitted, 15) <= 140
    assert fitted.startswith("blo")
    assert fitted.endswith("weight")
    with pytest.raises(SettingError, match="font"):
        Typeface(Path(__file__))


def test_the_same_run_gives_the_same_bytes(marked: Run) -> None:
    one, other = (HeatmapPicture(marked, Choice(), style()).still().tobytes() for _ in range(2))
    assert one == other
