"""The small parts: colours, characters, names, axes, keys, bars."""

from __future__ import annotations

import io
import re
import sys
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from undertow.show import bars
from undertow.show.terminal.ability import Ability, Depth, ability_of, depth_of
from undertow.show.terminal.axis import Axis
from undertow.show.terminal.ink import PAPER, SHADES, Ink
from undertow.show.terminal.line_labels import labels_of, line_of
from undertow.show.terminal.screen import keys_in
from undertow.show.terminal.sparkline import sparkline
from undertow.show.terminal.writing import Writing, abbreviate, clean, crop, shorten
from undertow.views.palette import NAMES, Cell, palette_of

TRUE, PLAIN = Ability(Depth.TRUE), Ability(Depth.NONE, unicode=False)


@pytest.mark.parametrize(
    ("environment", "depth"),
    [
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, Depth.TRUE),
        ({"TERM": "xterm", "COLORTERM": "24bit"}, Depth.TRUE),
        ({"TERM": "xterm-kitty"}, Depth.TRUE),
        ({"TERM": "screen-256color"}, Depth.PALETTE),
        ({"TERM": "xterm"}, Depth.SIXTEEN),
        ({"TERM": "linux"}, Depth.SIXTEEN),
        ({"TERM": "dumb", "COLORTERM": "truecolor"}, Depth.NONE),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor", "NO_COLOR": "1"}, Depth.NONE),
        ({"TERM": "xterm-256color", "NO_COLOR": ""}, Depth.PALETTE),
        ({}, Depth.NONE),
    ],
)
def test_the_environment_decides_on_colours(environment: dict[str, str], depth: Depth) -> None:
    assert depth_of(environment, is_terminal=True) is depth
    assert depth_of(environment, is_terminal=False) is Depth.NONE


@pytest.mark.parametrize(("encoding", "blocks"), [("utf-8", True), ("ascii", False), ("latin-1", False)])
def test_the_encoding_decides_on_characters(encoding: str, blocks: bool) -> None:
    assert ability_of(io.TextIOWrapper(io.BytesIO(), encoding), {}).unicode is blocks


@given(st.text(), st.integers(0, 60), st.booleans())
def test_text_is_safe_and_never_too_wide(text: str, width: int, unicode: bool) -> None:
    safe = clean(text, unicode)
    assert safe.isprintable()
    assert unicode or safe.isascii()
    assert cell_len(shorten(safe, width)) <= width
    assert cell_len(crop(safe, width)) <= width
    assert cell_len(abbreviate(safe, width)) <= width
    line = Writing(width, Ability(Depth.TRUE, unicode)).add(text, "1").add(text).to(width)
    assert cell_len(re.sub(r"\x1b\[[0-9;]*[mG]", "", str(line))) == width


def test_long_paths_keep_both_ends() -> None:
    assert shorten("blocks.11.attention.out_proj.weight", 20) == "blocks.…_proj.weight"
    assert shorten("层层层层层层层层层层", 7) == "层…层层"
    assert shorten("short", 20) == "short"
    assert abbreviate("blocks.11.attention.out_proj.weight", 32) == "blo.11.attention.out_proj.weight"
    assert abbreviate("blocks.11.attention.out_proj.weight", 21) == "blo.11.att.out.weight"
    assert abbreviate("blocks.11.attention.out_proj.weight", 18) == "b.11.a.out.weight"
    assert abbreviate("blocks.11.attention.out_proj.weight", 8) == "b.1…ight"


def test_a_character_holds_two_cells() -> None:
    ink = Ink(TRUE, palette_of())
    dark, light = 0, SHADES - 1
    row = ink.rows(np.array([[dark, light]], np.uint8), beside=True)
    assert row == ["\x1b[0;38;2;68;1;84;48;2;253;231;37m▌\x1b[0m"]
    assert ink.rows(np.array([[dark], [light]], np.uint8), beside=False)[0][-5:] == "▀\x1b[0m"
    assert ink.rows(np.array([[dark] * 8], np.uint8), beside=True) == ["\x1b[0;48;2;68;1;84m    \x1b[0m"]
    assert ink.rows(np.array([[PAPER] * 4], np.uint8), beside=True) == ["  "]
    assert ink.rows(np.array([[PAPER, dark]], np.uint8), beside=True) == ["\x1b[0;38;2;68;1;84m▐\x1b[0m"]
    assert ink.rows(np.array([[dark]], np.uint8), beside=True) == ["\x1b[0;38;2;68;1;84m▌\x1b[0m"]  # an odd one


@pytest.mark.parametrize("depth", [Depth.TRUE, Depth.PALETTE, Depth.SIXTEEN])
@pytest.mark.parametrize("palette", NAMES)
def test_what_is_not_finite_is_never_half_a_character(depth: Depth, palette: str) -> None:
    ink = Ink(Ability(depth), palette_of(palette))
    bad = int(np.flatnonzero([ink.mark(Cell.NONFINITE) == ink.rows(np.full((1, 2), place, np.uint8), True)[0]
                              for place in range(PAPER)])[0])  # fmt: skip
    for other in range(PAPER + 1):
        for pair in ((bad, other), (other, bad)):
            assert "╳" in ink.rows(np.array([pair], np.uint8), beside=True)[0]
            assert "╳" in ink.rows(np.array([pair], np.uint8).T, beside=False)[0]


@pytest.mark.parametrize("depth", Depth)
@pytest.mark.parametrize("unicode", [True, False])
def test_every_kind_of_cell_has_a_look_of_its_own(depth: Depth, unicode: bool) -> None:
    ink = Ink(Ability(depth, unicode), palette_of())
    kinds = [ink.mark(cell) for cell in Cell if cell is not Cell.VALUE]
    values = {ink.rows(np.full((1, 2), place, np.uint8), beside=True)[0] for place in range(SHADES)}
    assert len(set(kinds)) == len(kinds)
    assert not values & set(kinds)
    assert len(values) >= (4 if depth is Depth.NONE else 5)
    assert unicode or all(text.isascii() for text in [*kinds, *values])
    assert depth is not Depth.NONE or not any("\x1b" in text for text in kinds)


@given(st.integers(0, 1000), st.integers(1, 5000), st.integers(1, 300), st.sampled_from([1, 2]), st.booleans())
def test_an_axis_has_room_for_every_step(first: int, steps: int, characters: int, halves: int, growing: bool) -> None:
    axis = Axis.of(first, first + steps - 1, characters, halves, growing)
    assert axis.characters <= characters
    assert axis.last >= first + steps - 1
    places = [axis.character(step) for step in range(first, first + steps)]
    assert places[0] == 0
    assert places == sorted(places)
    assert max(places) < axis.characters
    every = np.arange(first, first + steps)
    means = axis.gather(every, every.astype(np.float64))
    assert len(means) == axis.characters
    assert np.isfinite(means).all()
    assert axis.any_of(every, every == first + steps - 1)[places[-1]]


def test_sparkline_shows_shape_gaps_and_what_is_not_finite() -> None:
    values, good = np.array([0.0, 1.0, 2.0, 7.0]), np.zeros(4, bool)
    assert sparkline(values, good) == ["▁▂▃█"]
    assert sparkline(values, good, rows=2) == ["   █", "▁▃▅█"]
    assert sparkline(np.array([1.0, np.nan, 2.0]), np.array([False, False, True])) == ["▁ ×"]
    assert sparkline(np.array([1.0, 1e3, 1e6]), np.zeros(3, bool)) == ["▁▅█"]  # too wide for a linear scale
    assert sparkline(np.array([5.0, 5.0]), np.zeros(2, bool), unicode=False) == ["__"]
    assert sparkline(np.empty(0), np.zeros(0, bool)) == [""]


def test_keys() -> None:
    assert keys_in("q \x1b[C\x1b[D\x1bOA\x1b[6~\x1b") == ["q", "space", "right", "left", "up", "page down", "escape"]
    assert keys_in("\x1b[200~\x1b[?1;2c\x1b[<0;3;4M") == []  # pastes, answers and mice mean nothing here
    assert keys_in("ä\x00\x7f\r") == ["ä", "backspace", "enter"]


def test_labels_tell_lines_apart() -> None:
    paths = [f"net.blocks.{block}.{name}" for block in (0, 1) for name in ("fc.weight", "fc.bias", "norm.scale")]
    assert [text for _, text in labels_of(paths, paths, 1)] == paths
    assert [text for _, text in labels_of(paths, paths, 1, brief=True)][:2] == ["0.fc.weight", "0.fc.bias"]
    pairs = labels_of(paths, paths, 2, brief=True)
    assert pairs == [(0, "0.fc"), (2, "0.norm.scale …"), (4, "1.fc.bias …")]
    assert line_of(paths, pairs, "net.blocks.1.fc.weight") == 1
    assert line_of(paths, pairs, "elsewhere") is None


def test_bars_of_others_are_seen_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tqdm.std", raising=False)
    assert not bars.bar_is_open()
    bar = types.SimpleNamespace(disable=False)
    kind = types.SimpleNamespace(_instances=[bar])
    monkeypatch.setitem(sys.modules, "tqdm.std", types.SimpleNamespace(tqdm=kind))
    monkeypatch.setattr(sys, "stderr", types.SimpleNamespace(isatty=lambda: True))
    assert bars.bar_is_open()
    bar.disable = True
    assert not bars.bar_is_open()
    proxy = type("FileProxy", (), {"__module__": "rich.file_proxy", "isatty": lambda self: True})
    monkeypatch.setattr(sys, "stdout", proxy())
    assert bars.bar_is_open()
